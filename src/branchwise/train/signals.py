"""Control-C and SIGTERM: the first lets the step end and its state be saved, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


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

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None or not self.wait:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.asked = number
        self._say(f"{signal.Signals(number).name}: ends after this step and saves its state; once more: at once")
