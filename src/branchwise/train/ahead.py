"""Batches sampled ahead, in a thread, while the policy updates; with depth 0, in turn and exactly."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from branchwise.rollout.collect import Batch
from branchwise.train.metrics import Stopwatch

Collect = Callable[[int, Stopwatch], Batch]


class Ahead:
    """Hands out the batches of steps 1, 2, …; up to `depth` of them are sampled before their turn.

    The batch of step s is begun once s − 1 − depth updates are done, so that its trees are at most `depth` updates
    stale when they are trained on. Weights change only between two batches: a tree has one policy.

    Args:
        collect: samples and rewards the batch of a step.
        steps: of the whole run.
        depth: `train.async_depth`.
        interrupt: ends what is being sampled; called when the run ends within a batch.
    """

    def __init__(self, collect: Collect, steps: int, depth: int, interrupt: Callable[[], None]) -> None:
        self.collect, self.steps, self.depth, self.interrupt = collect, steps, depth, interrupt
        self.updates = 0
        self._first = 1
        """The step whose batch is sampled first."""
        self._cursor = 0
        self._state = threading.Condition()
        self._ready: deque[tuple[Batch, int, Stopwatch]] = deque()
        self._sampling = self._pausing = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sampling ahead", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._state:
            self._closed = True
            self._state.notify_all()
        if self._thread.is_alive():
            self.interrupt()
            self._thread.join(60)

    def take(self, step: int, clock: Stopwatch) -> Batch:
        """The batch of a step, each tree with its staleness; it is kept until its update is done.

        Raises:
            Exception: whatever ended the thread.
        """
        if self.depth:
            self._wait(clock)
        elif not self._ready:
            # one action, so that a signal finds the batch kept whole, or nothing of it
            self._ready.append((self.collect(step, clock), self.updates, Stopwatch()))
        batch, version, background = self._ready[0]
        clock.background.update(background.seconds)
        for tree in batch.trees + batch.rejected:
            tree.staleness = step - 1 - version
        return batch

    def _wait(self, clock: Stopwatch) -> None:
        if self._thread.ident is None:
            self._thread.start()
        with clock("waiting"), self._state:
            self._state.wait_for(lambda: self._ready or self._error)
            if not self._ready:
                assert self._error is not None
                raise self._error

    @property
    def ready(self) -> bool:
        """Whether a batch is there that no update has used."""
        return bool(self._ready)

    @property
    def cursor(self) -> int:
        """Where the stream of questions stood after the last batch that was sampled whole."""
        return self._ready[-1][0].cursor if self._ready else self._cursor

    def state(self) -> dict[str, Any]:
        """What the batches of further steps depend on, those sampled but not yet used among it; to be asked for while
        `paused`."""
        return {"cursor": self.cursor, "ready": list(self._ready)}

    def restore(self, step: int, state: dict[str, Any]) -> None:
        """Go on after `step`, with the batches that an earlier process had sampled; before the first `take`."""
        self.updates, self._cursor = step, state["cursor"]
        self._ready.extend(state["ready"])
        self._first = step + len(self._ready) + 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is sampled meanwhile; a batch that was begun is finished first."""
        with self._state:
            self._pausing = True
            self._state.wait_for(lambda: not self._sampling)
        try:
            yield
        finally:
            with self._state:
                self._pausing = False
                self._state.notify_all()

    def updated(self, step: int) -> None:
        """The engine has the weights after the update of `step`, whose batch is of no more use."""
        with self._state:
            self.updates, self._cursor = step, self._ready[0][0].cursor
            self._ready.popleft()
            self._state.notify_all()

    def _work(self) -> None:
        try:
            for step in range(self._first, self.steps + 1):
                if not self._begin(step):
                    return
                clock, version = Stopwatch(), self.updates
                batch = self.collect(step, clock)
                with self._state:
                    self._ready.append((batch, version, clock))
                    self._sampling = False
                    self._state.notify_all()
        except BaseException as error:
            with self._state:
                self._error, self._sampling = error, False
                self._state.notify_all()

    def _begin(self, step: int) -> bool:
        """Wait until a step's batch may be begun; False: nothing more is wanted."""
        with self._state:
            self._state.wait_for(lambda: self._closed or (step - 1 - self.depth <= self.updates and not self._pausing))
            self._sampling = not self._closed
            return self._sampling
