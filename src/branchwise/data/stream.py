"""The order in which questions are drawn."""

from __future__ import annotations

import numpy as np


class Stream:
    """An endless order over n questions, each once an epoch; `cursor` is all there is to save.

    Args:
        n: how many questions there are.
        seed: with the epoch's number, it decides the epoch's order.
        shuffle: False: the data's own order, every epoch.
        rank: of `size` processes, this one draws every size-th question from the rank-th on.
        size: how many processes draw.
        cursor: how many this process drew before, in an earlier run.
    """

    def __init__(self, n: int, seed: int, shuffle: bool = True, rank: int = 0, size: int = 1, cursor: int = 0) -> None:
        if n < 1:
            raise ValueError(f"n: a stream of {n} questions has nothing to draw")
        self.n, self.seed, self.shuffle, self.cursor = n, seed, shuffle, cursor
        self.rank, self.size = rank, size
        self._epoch, self._order = -1, np.arange(n)

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next `count` draws, each as (its place in the stream, its question's index)."""
        turns = range(self.cursor, self.cursor + count)
        self.cursor += count
        return [(draw, self._index(draw)) for draw in (turn * self.size + self.rank for turn in turns)]

    def _index(self, draw: int) -> int:
        epoch, place = divmod(draw, self.n)
        if self.shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.n)
        return int(self._order[place])
