"""A pool of worker processes: each call has a time limit, and a worker that overruns it is killed and replaced."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import uuid
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

from branchwise.rewards.adapt import Answer, Call
from branchwise.rewards.sandbox.process import descendants

log = logging.getLogger(__name__)

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from branchwise.rewards.worker import serve; serve(int(sys.argv[1]))"
)
MARK = "BRANCHWISE_REWARD_WORKER"
"""In the environment of a worker and of all that it starts."""
HEADER = 8
"""Bytes that give the length of what follows."""


class NotSendable(TypeError):
    """A call's arguments that cannot be sent to another process."""


class Pool:
    """Worker processes, started when there is work and kept for the next.

    A worker is a Python of its own, not a fork: a fork of a process whose threads hold locks (torch's do) may hang.

    Args:
        size: the most workers at a time; default: one for each CPU, at most 8.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(os.cpu_count() or 1, 8)
        self._workers: list[_Worker] = []
        weakref.finalize(self, _kill_all, self._workers)  # also when the interpreter ends

    def run(self, calls: Sequence[Call]) -> list[Answer]:
        """Make the calls, several at a time; answers in the calls' order.

        A call whose worker was killed from outside (SIGKILL: memory ran short, say) is made once more.

        Raises:
            NotSendable: arguments that cannot be pickled.
        """
        waiting = deque(enumerate(map(_pickled, calls)))
        answers: dict[int, Answer] = {}
        again: set[int] = set()
        try:
            while len(answers) < len(calls):
                while waiting and (worker := self._idle()):
                    number, data = waiting.popleft()
                    worker.begin(number, data, calls[number].timeout)
                for worker in self._busy():
                    if outcome := worker.outcome():
                        if worker.killed and worker.number not in again:
                            again.add(worker.number)
                            waiting.appendleft((worker.number, worker.data))
                            log.warning("a reward worker was killed from outside; its call is made once more")
                        else:
                            answers[worker.number] = outcome
                        worker.number = -1
                        if worker.dead:
                            self._workers.remove(worker)
                self._wait(bool(waiting))
            return [answers[i] for i in range(len(calls))]
        except BaseException:
            # an interrupt: what they are busy with is of no use any more
            for worker in self._busy():
                worker.kill()
                self._workers.remove(worker)
            raise

    def close(self) -> None:
        """End the workers; further calls start new ones."""
        _kill_all(self._workers)

    def warm(self, count: int = 1) -> None:
        """Start workers before there is work."""
        while len(self._workers) < min(count, self.size):
            self._workers.append(_Worker.start())

    def _idle(self) -> _Worker | None:
        for worker in [worker for worker in self._workers if worker.number < 0]:
            if worker.popen.poll() is None:
                return worker
            worker.kill()
            self._workers.remove(worker)
        if len(self._workers) < self.size:
            self._workers.append(_Worker.start())
            return self._workers[-1]
        return None

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.number >= 0]

    def _wait(self, more: bool) -> None:
        """Until a worker has something to say or the first is late."""
        busy = self._busy()
        if busy and not (more and len(busy) < self.size):
            wait([worker.connection for worker in busy], max(0.0, min(w.deadline for w in busy) - time.monotonic()))


@dataclass
class _Worker:
    popen: subprocess.Popen[bytes]
    connection: socket.socket
    mark: str
    received: bytearray = field(default_factory=bytearray)
    number: int = -1
    """Of the call it is busy with."""
    deadline: float = 0.0
    limit: float = 0.0
    data: bytes = b""
    """The call, pickled."""
    dead: bool = False
    killed: bool = False
    """By SIGKILL, and not by this process."""

    @classmethod
    def start(cls) -> _Worker:
        ours, theirs = socket.socketpair()
        mark = uuid.uuid4().hex
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, MARK: mark},
                start_new_session=True,  # an interrupt at the terminal is for the parent to handle
            )
        return cls(popen, ours, mark)

    def begin(self, number: int, data: bytes, limit: float) -> None:
        self.number, self.data, self.limit, self.deadline = number, data, limit, time.monotonic() + limit
        with contextlib.suppress(OSError):  # it died; that is seen when its answer is asked for
            self.connection.settimeout(limit)
            self.connection.sendall(len(data).to_bytes(HEADER, "big") + data)

    def outcome(self) -> Answer | None:
        """Its answer, or why there is none; None while there is time."""
        try:
            body = self._received()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.killed = self.popen.wait(1) == -signal.SIGKILL  # its own exit code
            self.kill()
            code = self.popen.returncode
            told = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return Answer([], failure=f"its worker process died ({told})")
        if body is not None:
            return _answer(body)
        if time.monotonic() < self.deadline:
            return None
        self.kill()
        return Answer([], failure=f"TimeoutError: stopped after {self.limit:g} s")

    def _received(self) -> bytes | None:
        """The answer once all of it is there. Never waits: a worker may stop in the middle of one.

        Raises:
            EOFError, OSError: the worker is gone.
        """
        self.connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while part := self.connection.recv(1 << 20):
                self.received += part
                size = int.from_bytes(self.received[:HEADER], "big")
                if len(self.received) >= HEADER + size and len(self.received) >= HEADER:
                    body = bytes(self.received[HEADER : HEADER + size])
                    self.received.clear()
                    return body
            raise EOFError
        return None

    def kill(self) -> None:
        """End it with all that it started, in sessions of their own, too."""
        self.dead = True
        # of one that has died, what it left belongs to others now
        tree = descendants(self.popen.pid) if self.popen.poll() is None else _marked(self.mark)
        with contextlib.suppress(OSError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        for pid in tree:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()
        self.connection.close()


def _pickled(call: Call) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(call))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise NotSendable(f"{call.name}: {error}") from error


def _answer(body: bytes) -> Answer:
    try:
        return pickle.loads(body)
    except Exception as error:  # of classes that only the worker can import
        return Answer([], failure=f"its answer cannot be read: {type(error).__name__}: {error}")


def _marked(mark: str) -> list[int]:
    """Processes that have the mark in their environment, where the system shows it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().kill()
