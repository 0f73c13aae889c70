"""Where reward functions run.

- Plain functions that a config names, or that another Python can import, run in worker processes (`workers.py`): a call
  over its time limit is killed with its worker.
- Other callables from Python (lambdas, closures, objects, functions of `__main__`) hold state of this process, and
  run in a thread here. A call over its limit is given up, but goes on in its thread: Python cannot stop one. A fork
  could be stopped, but a fork of a process with torch's threads may hang, and holds no GPU.
- Async functions run together in one event loop, each under its limit.

A function that takes a leaf at a time (verl's, verifiers') has the limit for each leaf, a built-in for each `PIECE` of
a batch, any other for the whole batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from branchwise.rewards.adapt import Answer, Call, Columns, RewardFunction, answer, answer_async
from branchwise.rewards.workers import NotSendable, Pool

GRACE = 5.0
"""Seconds an event loop has beyond its functions' own limits before it is held for stuck."""


class Caller:
    """Calls reward functions, all at the same time.

    Args:
        workers: the most worker processes; default: `Pool`'s.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._size = workers

    @cached_property
    def pool(self) -> Pool:
        return Pool(self._size)

    def call(self, functions: list[RewardFunction], columns: Columns, trainer_state: Any, count: int) -> list[Answer]:
        """What every function gives to `count` leaves, in the functions' order."""
        started = {
            f.name: self._start(f, columns, trainer_state, count) for f in functions if f.is_async or f.spec is None
        }
        answers = self._from_workers([f for f in functions if f.name not in started], columns, trainer_state, count)
        for f in functions:
            if f.name in started:
                answers[f.name] = self._finish(f, started[f.name], count)
        return [answers[f.name] for f in functions]

    def _start(self, f: RewardFunction, columns: Columns, trainer_state: Any, count: int) -> _Started:
        begun = time.monotonic()
        if f.is_async:
            return _Started(self._loop.start(answer_async(f, columns, trainer_state, count)), begun)
        return _Started(in_thread(answer, f, columns, trainer_state, count), begun)

    def _finish(self, f: RewardFunction, started: _Started, count: int) -> Answer:
        limit = f.timeout + (GRACE if f.is_async else 0.0)
        try:
            found = started.future.result(max(0.0, started.begun + limit - time.monotonic()))
        except TimeoutError:
            if f.is_async:
                self.__dict__.pop("_loop", None)  # something blocks it: the next call gets another
            told = "given up after" if not f.is_async else "blocks its event loop; given up after"
            return Answer([(None, f"TimeoutError: {told} {limit:g} s")] * count)
        return Answer(found.told(count), found.metrics, found.extras)

    def _from_workers(
        self, functions: list[RewardFunction], columns: Columns, trainer_state: Any, count: int
    ) -> dict[str, Answer]:
        """All functions' pieces go through the pool together."""
        pieces = [(f, piece) for f in functions for piece in _pieces(count, f.rows or count)]
        try:
            done = self.pool.run([_call(f, columns, trainer_state, piece) for f, piece in pieces])
        except NotSendable:
            done = [Answer([], unloadable="its arguments cannot be sent")] * len(pieces)
        answers = {}
        for f in functions:
            own = [(piece, found) for (g, piece), found in zip(pieces, done) if g is f]
            if any(found.unloadable for _, found in own):
                # what only this process can call is called here
                answers[f.name] = self._finish(f, self._start_here(f, columns, trainer_state, count), count)
            else:
                answers[f.name] = _joined(own, count)
        return answers

    def _start_here(self, f: RewardFunction, columns: Columns, trainer_state: Any, count: int) -> _Started:
        return _Started(in_thread(answer, f, columns, trainer_state, count), time.monotonic())

    @cached_property
    def _loop(self) -> EventLoop:
        return EventLoop()


@dataclass
class _Started:
    future: Future[Answer]
    begun: float


class EventLoop:
    """A loop in a thread of its own, for async functions: their clients outlive a call; the caller may have a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def in_thread(function: Any, *args: Any) -> Future[Any]:
    """Call a function in a thread that no exit waits for."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # an interrupt that the function raises is raised by whoever waits for it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _call(f: RewardFunction, columns: Columns, trainer_state: Any, piece: slice) -> Call:
    assert f.spec is not None
    cut = {name: list(values[piece]) for name, values in f.wanted(columns).items()}
    return Call(f.spec, f.name, f.args, cut, trainer_state, piece.stop - piece.start, f.timeout)


def _joined(pieces: list[tuple[slice, Answer]], count: int) -> Answer:
    """One answer of its pieces', in order; a column that only some of them wrote is None elsewhere."""
    whole = Answer([])
    columns: dict[str, list[Any]] = {}
    for piece, found in pieces:
        whole.parts += found.told(piece.stop - piece.start)
        whole.metrics += found.metrics
        for column, values in found.extras:
            columns.setdefault(column, [None] * count)[piece] = values
    whole.extras = list(columns.items())
    return whole
