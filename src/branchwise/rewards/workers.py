"""A pool of worker processes: each call has a time limit, and a worker that overruns it is killed and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import ForkingPickler

from branchwise.rewards.adapt import Answer, Call
from branchwise.rewards.sandbox.process import descendants

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from branchwise.rewards.worker import serve; serve(int(sys.argv[1]))"
)


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

        Raises:
            NotSendable: arguments that cannot be pickled.
        """
        waiting = deque(enumerate(map(_pickled, calls)))
        answers: dict[int, Answer] = {}
        try:
            while len(answers) < len(calls):
                while waiting and (worker := self._idle()):
                    number, data = waiting.popleft()
                    worker.begin(number, data, calls[number].timeout)
                for worker in self._busy():
                    if outcome := worker.outcome():
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
    connection: Connection
    number: int = -1
    """Of the call it is busy with."""
    deadline: float = 0.0
    limit: float = 0.0
    dead: bool = False

    @classmethod
    def start(cls) -> _Worker:
        ours, theirs = Pipe()
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is for the parent to handle
            )
        return cls(popen, ours)

    def begin(self, number: int, data: bytes, limit: float) -> None:
        self.number, self.limit, self.deadline = number, limit, time.monotonic() + limit
        with contextlib.suppress(OSError):  # it died; that is seen when its answer is asked for
            self.connection.send_bytes(data)

    def outcome(self) -> Answer | None:
        """Its answer, or why there is none; None while there is time."""
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            code = self.popen.returncode
            told = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return Answer([], failure=f"its worker process died ({told})")
        if time.monotonic() < self.deadline:
            return None
        self.kill()
        return Answer([], failure=f"TimeoutError: stopped after {self.limit:g} s")

    def kill(self) -> None:
        """End it with all that it started, in sessions of their own, too."""
        self.dead = True
        tree = descendants(self.popen.pid) if self.popen.poll() is None else []
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


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().kill()
