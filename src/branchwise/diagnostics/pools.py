"""Uniform pools: how many teach nothing, at one size for fair comparison, and how many a question's pool rescues."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from branchwise.algorithm.advantage import SAME, pools
from branchwise.tree import Tree


def uniform_at(n: int, c: int, g: int) -> float | None:
    """Probability that g of a pool's n binary rewards, c of them 1, are all equal: [C(c,g) + C(n−c,g)] / C(n,g).

    Larger pools are less often uniform by their size alone; at a common g, pools of any size compare.

    Returns:
        None where n < g or g < 1.
    """
    return uniform_share([c, n - c], g)


def uniform_share(counts: Sequence[int], g: int) -> float | None:
    """The same for rewards of any values: how often each occurs in the pool."""
    n = sum(counts)
    if g < 1 or n < g:
        return None
    return sum(math.comb(count, g) for count in counts) / math.comb(n, g)


def value_counts(rewards: Sequence[float]) -> list[int]:
    """How often each value occurs; values within `SAME` of their neighbour are one."""
    counts: list[int] = []
    last = math.nan
    for value in sorted(rewards):
        if counts and value - last <= SAME * max(1.0, abs(value)):
            counts[-1] += 1
        else:
            counts.append(1)
        last = value
    return counts


def pool_sums(trees: Iterable[Tree], g: int) -> dict[str, float]:
    """Sums that add up over processes; `pool_metrics` makes shares of them.

    Args:
        trees: rewarded.
        g: the common size. K, the thoughts of a phrasing, is always there, unless rewards are missing.
    """
    sums: dict[str, float] = defaultdict(float)
    for tree in trees:
        question = pools(tree, "question")[0]
        phrasings = pools(tree, "phrasing")
        for level, some in (("question", [question]), ("phrasing", phrasings)):
            for pool in some:
                share = uniform_share(value_counts([float(tree.nodes[leaf].reward or 0.0) for leaf in pool.leaves]), g)
                if share is not None:
                    sums[f"common/{level}"] += share
                    sums[f"common/{level}/count"] += 1
        uniform = [pool.uniform is not None for pool in phrasings]
        alive = question.uniform is None and question.counted > 1
        sums["uniform_phrasings"] += sum(uniform)
        sums["rescued_phrasings"] += alive * sum(uniform)
        sums["uniform_originals"] += bool(uniform and uniform[0])
        sums["rescued_originals"] += bool(uniform and uniform[0] and alive)
    return dict(sums)


def pool_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Shares from summed `pool_sums`.

    `uniform_common/LEVEL`: mean probability that g members of a pool are uniform. `rescued/phrasing`: share of the
    uniform phrasings' pools whose question's pool is not uniform, so that pooling by question (TA-GRPO) gives them a
    gradient; `rescued/original`: the same of the original wordings alone, which is what GRPO would have had.
    """
    metrics = {}
    for level in ("question", "phrasing"):
        if count := sums.get(f"common/{level}/count"):
            metrics[f"uniform_common/{level}"] = sums[f"common/{level}"] / count
    for name, plural in (("phrasing", "phrasings"), ("original", "originals")):
        if uniform := sums.get(f"uniform_{plural}"):
            metrics[f"rescued/{name}"] = sums[f"rescued_{plural}"] / uniform
    if "rescued_phrasings" in sums:
        metrics["rescued_pools"] = sums["rescued_phrasings"]
    return metrics


def pooled_share(rewards: Sequence[Sequence[float]], g: int) -> float | None:
    """Mean `uniform_share` at size g over several pools' rewards; None where none is that large."""
    shares = [s for r in rewards if (s := uniform_share(value_counts(r), g)) is not None]
    return float(np.mean(shares)) if shares else None
