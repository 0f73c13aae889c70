"""The last stage of equality, for what `formula` does not read, such as integrals, sums and limits: SymPy.

SymPy may take for ever on a short formula, and nothing inside a process can stop it for sure. So it works in processes
of their own (`symbolic_worker.py`), kept warm, killed when they overrun and started anew when next needed. It works off
the main thread, since no signal reaches this process; and none of it is run but formulas of known commands and tame
sizes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from branchwise.rewards.mathematics import words

SECONDS = 1.5
"""Of wall-clock time for one comparison; it ends as unequal."""
LIMIT = 2.0
"""What one answer may cost: the comparison, and ending the process."""
_START_SECONDS = 60.0
"""For the imports of a new worker."""
_AT_ONCE = 2
"""Workers of one process."""

_COMMANDS = frozenset(
    words("""
    frac sqrt pi cdot times div pm sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp infty cup cap
    in le ge lt gt ne neq alpha beta gamma delta lambda mu omega phi rho sigma tau theta setminus emptyset mathbb int
    sum prod lim to partial min max gcd binom lfloor rfloor lceil rceil cdots
    """)
)
_HARD = re.compile(r"\\[a-z]|[\^=<>]")
"""What is worth the time: two words are not."""


@lru_cache(maxsize=1024)
def equal(gold: str, given: str) -> bool:
    """Whether SymPy or Math-Verify shows two normalised texts to be equal, within `SECONDS`."""
    if not (_is_tame(gold) and _is_tame(given) and _HARD.search(gold + given)):
        return False
    with _places:
        worker = _take()
        same = worker.ask(gold, given)
        if worker.is_alive():
            _idle.append(worker)
        return same


def _is_tame(text: str) -> bool:
    """Mathematics of known commands, without words, and without powers and factorials that could take for ever."""
    if len(text) > 200 or sum(map(text.count, "([{|")) > 30 or "__" in text:
        return False
    if not re.fullmatch(r"[\w\s+\-*/^_=<>|.,()\[\]{}\\&!]*", text, re.ASCII):
        return False
    if not set(re.findall(r"\\([A-Za-z]+)", text)) <= _COMMANDS:
        return False
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    if re.search(r"[A-Za-z]{4}|\d{12}|\d{4,} ?!", bare):
        return False
    exponents = re.findall(r"\^\s*(\{[^{}]*\}|-?\d+|\\?\w+)", text)
    return len(exponents) == text.count("^") and not any("^" in exponent for exponent in exponents)


class _Worker:
    """A process that compares one pair after another."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("symbolic_worker.py")), str(SECONDS)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,  # an interrupt is for this process to deal with
        )  # fmt: skip
        self._line(_START_SECONDS)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, gold: str, given: str) -> bool:
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps([gold, given]) + "\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        return self._line(SECONDS) == "equal\n"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.forget()

    def forget(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _line(self, seconds: float) -> str:
        """The process's next line; '' where it overran and was killed, or died."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        timer.cancel()
        if not line:
            self.stop()
        return line


_idle: list[_Worker] = []
_places = threading.BoundedSemaphore(_AT_ONCE)


def _take() -> _Worker:
    try:
        worker = _idle.pop()
    except IndexError:
        return _Worker()
    return worker if worker.is_alive() else _Worker()


@atexit.register
def stop_workers() -> None:
    """End the warm workers; the next comparison starts a new one."""
    while _idle:
        _idle.pop().stop()


def _forget_workers() -> None:
    """In a forked child: the workers are its parent's."""
    global _places
    while _idle:
        _idle.pop().forget()
    _places = threading.BoundedSemaphore(_AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
