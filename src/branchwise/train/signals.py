"""Control-C and SIGTERM: the first lets the state be saved, the second stops at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

ECHO = 1.0
"""Seconds within which a signal that comes again is the same: a scheduler sends it to every process of a job, and a
launcher among these passes it on."""


class Ended(SystemExit):
    """A signal ends the run here; what it has done is to be saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)
        self.signal = signal


class Signals:
    """Remembers that an end was asked for; a run ended so exits with 128 + the signal's number, as shells have it.

    Args:
        say: shows a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked: int | None = None
        """The signal's number."""
        self.wait = False
        """Whether there is something to save; before, the first signal stops at once, too."""
        self._at_once = False
        self._asked_at = 0.0
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is under way is left where a signal comes: it can be done again, the same.

        Raises:
            Ended: a signal came, now or before.
        """
        self._at_once = True
        try:
            if self.asked is not None:
                raise Ended(self.asked)
            yield
        finally:
            self._at_once = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and time.monotonic() - self._asked_at < ECHO:
            return
        if self.asked is not None or not self.wait:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.asked, self._asked_at = number, time.monotonic()
        with suppress(RuntimeError):  # Python lets nobody write within a writing that the signal has interrupted
            self._say(f"{signal.Signals(number).name}: saves the state and ends; once more: at once")
        if self._at_once:
            raise Ended(number)
