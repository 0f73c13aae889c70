"""Mean reward on held-out questions, with its interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from branchwise.tree import Tree


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean reward over questions, its 95% interval by bootstrap over questions, and how many questions counted."""

    mean: float
    low: float
    high: float
    n: int
    missing: int
    """Leaves without a reward; they count nowhere."""

    def __str__(self) -> str:
        missing = f", {self.missing} responses without a reward" if self.missing else ""
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n}{missing})"


def held_out_mean(trees: list[Tree], resamples: int = 10_000) -> HeldOut | None:
    """Mean of the questions' mean rewards and its percentile bootstrap interval (95%, questions resampled).

    None where no leaf was rewarded.
    """
    rewards = [[tree.nodes[i].reward for i in tree.leaves()] for tree in trees]
    known = [[r for r in rs if r is not None] for rs in rewards]
    means_B = np.array([np.mean(rs) for rs in known if rs], dtype=np.float64)
    if not len(means_B):
        return None
    picks = np.random.default_rng(0).integers(len(means_B), size=(resamples, len(means_B)))
    low, high = np.percentile(means_B[picks].mean(axis=1), [2.5, 97.5])
    missing = sum(r is None for rs in rewards for r in rs)
    return HeldOut(float(means_B.mean()), float(low), float(high), len(means_B), missing)
