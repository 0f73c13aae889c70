"""Processes of a sandbox seen from outside: talked to, watched and killed with all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from branchwise.rewards.sandbox.limits import MB, Limits

LATE = "time limit"
TICK = 0.05
"""Seconds between two looks at what a program uses."""
KEPT_ERRORS = 4096
"""Characters of the error output that are kept, from its end."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Jailed:
    """A started program: the process to talk to and how to end it."""

    popen: subprocess.Popen[bytes]
    limits: Limits
    folders: tuple[str, ...] = ()
    """Folders of the sandbox whose number of files is limited, below its root."""
    end: Callable[[], None] | None = None
    """Ends what killing the process alone would leave."""
    errors: bytearray = field(default_factory=bytearray)
    printed: int = 0

    def __post_init__(self) -> None:
        _STARTED.add(self.popen.pid)

    def excess(self) -> str | None:
        """Which limit the program and its descendants are over."""
        if self.printed > self.limits.output_mb * MB:
            return f"output limit: more than {self.limits.output_mb} MB"
        tree = descendants(self.popen.pid)
        if sum(map(_threads, tree)) > self.limits.processes + 2:  # the sandbox's own two
            return f"process limit: more than {self.limits.processes}"
        if sum(map(_resident, tree)) > self.limits.memory_mb * MB:
            return f"memory limit: more than {self.limits.memory_mb} MB"
        scratch = self.limits.disk_mb * MB
        if any(_files(tree[-1], folder, scratch) > self.limits.files for folder in self.folders):
            return f"file limit: more than {self.limits.files} files"
        return None

    def kill(self) -> None:
        """End the whole tree and collect it; afterwards nothing of it runs."""
        if self.popen.poll() is None:
            if self.end:
                self.end()
            # first what it started: the first process of a PID namespace takes all others with it, and the
            # sandbox's own process is then there to collect it
            for pid in descendants(self.popen.pid)[1:]:
                _kill(pid)
            try:
                self.popen.wait(1)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()
        _reap_orphans(self.popen.pid)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def last_error(self) -> str:
        """The last line of the error output."""
        lines = self.errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Exchange:
    """Moves bytes between this process and sandboxed ones until a goal, a deadline or a limit."""

    def __init__(self, jailed: list[Jailed], deadline: float) -> None:
        self._jailed, self._deadline = jailed, deadline
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[int, bytearray] = {}
        self._closing: set[int] = set()
        self._files: dict[int, IO[bytes]] = {}
        for jail in jailed:
            self.read(jail.popen.stderr, jail, partial(_keep_end, jail.errors))

    def read(
        self, stream: Any, jail: Jailed, take: Callable[[bytes], object], ended: Callable[[], object] | None = None
    ) -> None:
        """Call `take` with what the stream gives, counted to the program's output, and `ended` at its end."""
        fd = stream.fileno()
        os.set_blocking(fd, False)

        def ready() -> None:
            data = os.read(fd, 1 << 16)
            jail.printed += len(data)
            if data:
                take(data)
            else:
                self._selector.unregister(fd)
                if ended:
                    ended()

        self._selector.register(fd, selectors.EVENT_READ, ready)

    def write(self, stream: Any, data: bytes, close: bool = False) -> None:
        """Queue `data`; with `close`, the stream ends behind it."""
        fd = stream.fileno()
        if fd not in self._waiting:
            os.set_blocking(fd, False)
            self._waiting[fd] = bytearray()
            self._files[fd] = stream
            self._selector.register(fd, selectors.EVENT_WRITE, lambda: self._flush(fd))
        self._waiting[fd] += data
        if close:
            self._closing.add(fd)

    def _flush(self, fd: int) -> None:
        waiting = self._waiting[fd]
        try:
            del waiting[: os.write(fd, memoryview(waiting)[: 1 << 16].tobytes())]
        except BrokenPipeError:
            waiting.clear()
        if not waiting:
            self._selector.unregister(fd)
            del self._waiting[fd]
            if fd in self._closing:
                self._files[fd].close()

    def run(self, done: Callable[[], bool]) -> str | None:
        """Go on until `done()` or until nothing is left to read; why it was cut short, or None."""
        look = time.monotonic() + TICK
        while not done():
            if not self._selector.get_map():
                return self._settle()
            for key, _ in self._selector.select(max(0.0, min(TICK, look - time.monotonic()))):
                with contextlib.suppress(BlockingIOError):
                    key.data()
            now = time.monotonic()
            if now > self._deadline:
                return LATE
            if now >= look or any(jail.printed > jail.limits.output_mb * MB for jail in self._jailed):
                if excess := next((e for jail in self._jailed if (e := jail.excess())), None):
                    return excess
                look = time.monotonic() + TICK
        return None

    def _settle(self) -> str | None:
        """Everything is read: wait for programs that only closed their output."""
        while any(jail.popen.poll() is None for jail in self._jailed):
            if time.monotonic() > self._deadline:
                return LATE
            if excess := next((e for jail in self._jailed if (e := jail.excess())), None):
                return excess
            time.sleep(0.001)
        return None

    def close(self) -> None:
        self._selector.close()


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave: bwrap does not wait for its first process inside.

    For processes of our own alone: elsewhere the system's init collects them, where there is a real one.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _reap_orphans(gone: int) -> None:
    """Collect dead processes that became this one's: else they stay as zombies until it ends."""
    _STARTED.discard(gone)
    for pid in _children(os.getpid()):
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{pid}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            if name == "bwrap" and rest.split()[0] == "Z" and pid not in _STARTED:
                os.waitpid(pid, os.WNOHANG)


_STARTED: set[int] = set()
"""Processes that somebody here waits for."""


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    for place in found:
        found += _children(place)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _resident(pid: int) -> int:
    """Bytes of memory in use."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _files(pid: int, folder: str, size: int) -> int:
    """Files in a folder of the sandbox; 0 as long as that is not mounted yet."""
    try:
        usage = os.statvfs(f"/proc/{pid}/root{folder}")
    except OSError:
        return 0
    return usage.f_files - usage.f_ffree if usage.f_blocks * usage.f_frsize <= size else 0


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _keep_end(kept: bytearray, data: bytes) -> None:
    kept += data
    del kept[:-KEPT_ERRORS]
