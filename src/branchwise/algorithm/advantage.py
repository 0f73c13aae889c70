"""From a tree's rewards to advantages: what is better than its pool, and by how much.

R is the reward of a leaf, V the value of a thought: the mean reward of its leaves. Over the rewards, or the values, x
of a pool

    A = (x − mean x) / (std x + eps)                        (GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1.2)

With x = R this is an answer's advantage, with x = V a thought's (GRPO-MA, arXiv 2509.24494). A pool is one phrasing's
leaves, or all of a question's (TA-GRPO, arXiv 2601.22478). A leaf whose reward is missing counts nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from branchwise.config import AlgorithmConfig, Config, ConfigError
from branchwise.plugins import load_function
from branchwise.tree import Tree

Advantage = list[float | np.ndarray]
"""A value per node of a tree, or one for each of a node's tokens [T]; 0 for prompts."""
Total = Callable[[dict[str, float]], dict[str, float]]
"""Adds values up by key over all processes."""

SAME = 1e-9
"""Values within SAME · max(1, |x|) of each other are equal."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Leaves whose rewards are normalised together."""

    leaves: tuple[int, ...]
    """Places of the leaves that count: those with a reward."""
    uniform: Literal["all_right", "all_wrong", "tied"] | None
    """What their rewards are where all are equal: paid in full (every function that applied paid 1 or more), nothing
    or less, or something between; None where they differ, or where there are fewer than two."""

    @property
    def counted(self) -> int:
        """Members; with fewer than two there is nothing to compare and every advantage is 0."""
        return len(self.leaves)

    @property
    def mute(self) -> bool:
        """Whether it teaches nothing: every advantage is 0."""
        return self.uniform is not None or self.counted < 2


def pools(tree: Tree, level: Literal["phrasing", "question"]) -> list[Pool]:
    """The pools of a tree in order: one for each phrasing that anything was sampled from, or one for the question."""
    if level == "question":
        return [_pool(tree, list(tree.leaves()))]
    return [_pool(tree, leaves) for root in tree.phrasings() if (leaves := list(tree.leaves(root)))]


def advantages(trees: Sequence[Tree], config: Config, total: Total = dict) -> list[Advantage]:
    """Advantages of a batch, by `algorithm.advantage`.

    Args:
        trees: this process's trees, rewarded.
        config: its `algorithm` names the function and its settings.
        total: adds values up by key over all processes (`scale: batch` needs the batch's std).

    Returns:
        For each tree a value per node.

    Raises:
        ConfigError: a function of the user's cannot be loaded, or returns something of another shape.
    """
    if config.algorithm.advantage == "group_relative":
        return group_relative(trees, config, total)
    values = load_function(config.algorithm.advantage)(trees, config)
    _check(values, trees, config.algorithm.advantage)
    return values


def group_relative(trees: Sequence[Tree], config: Config, total: Total = dict) -> list[Advantage]:
    """GRPO's advantages, of answers among the rewards of their pool and of thoughts among its thoughts' values.

    With one answer to a thought both are the GRPO advantage. An unclosed thought, and a response without a marker, is
    its own only leaf: V = R.
    """
    a = config.algorithm
    spread = batch_std(trees, a.ddof, total) if a.scale == "batch" else None
    return [_tree_advantage(tree, a, spread) for tree in trees]


def _tree_advantage(tree: Tree, a: AlgorithmConfig, batch_spread: float | None) -> Advantage:
    A: Advantage = [0.0] * len(tree.nodes)
    for pool in pools(tree, a.pool):
        R = _rewards(tree, pool.leaves)
        V = thought_values(tree, pool.leaves)
        for answer, advantage in zip(pool.leaves, relative(R, a, batch_spread)):
            A[answer] = float(advantage)
        for thought, advantage in zip(V, relative(np.array(list(V.values())), a, batch_spread)):
            A[thought] = float(advantage)
    return A


def thought_values(tree: Tree, leaves: Sequence[int]) -> dict[int, float]:
    """V of each thought above the leaves, by its place: the mean reward of those leaves."""
    below: dict[int, list[int]] = defaultdict(list)
    for leaf in leaves:
        _, thought, *_ = tree.path(leaf)
        below[thought].append(leaf)
    return {thought: float(_rewards(tree, leaves).mean()) for thought, leaves in below.items()}


def relative(x: np.ndarray, a: AlgorithmConfig, batch_spread: float | None = None) -> np.ndarray:
    """Advantages of one pool's rewards or values x, float64.

    Exactly 0 where all are equal or fewer than two. `leave_one_out` takes the mean of the *others* as each one's
    baseline (RLOO, arXiv 2402.14740, equation 9): a thought's leaves out its own answers. `scale` divides by the
    pool's std, the std of all rewards of the batch (for answers and thoughts alike), or not at all (Dr.GRPO).
    """
    if len(x) < 2 or same(x):
        return np.zeros(len(x))
    centred = x - x.mean()
    if a.baseline == "leave_one_out":
        centred = centred * len(x) / (len(x) - 1)
    if a.scale == "none":
        return centred
    std = x.std(ddof=a.ddof) if batch_spread is None else batch_spread
    return centred / (std + a.eps)


def same(x: np.ndarray) -> bool:
    """Whether all values are equal; by their range, since a std of equal values need not come out as 0."""
    return bool(np.ptp(x) <= SAME * max(1.0, np.abs(x).max()))


def batch_std(trees: Sequence[Tree], ddof: int, total: Total = dict) -> float:
    """The std of all rewards of the batch, over all processes, in two passes; 0 of fewer than two."""
    R = np.concatenate(
        [np.zeros(0), *(_rewards(tree, pool.leaves) for tree in trees for pool in pools(tree, "question"))]
    )
    sums = total({"count": len(R), "reward": float(R.sum())})
    if sums["count"] < 2:
        return 0.0
    mean = sums["reward"] / sums["count"]
    squares = total({"squares": float(((R - mean) ** 2).sum())})["squares"]
    return float(np.sqrt(squares / (sums["count"] - ddof)))


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), to be added to a response's reward.

    0 up to limit − buffer tokens, then falling to −1 at the limit; 0 where buffer is 0.
    """
    if buffer == 0 or length <= limit - buffer:
        return 0.0
    return max(-1.0, (limit - buffer - length) / buffer)


def _pool(tree: Tree, leaves: Sequence[int]) -> Pool:
    counted = tuple(leaf for leaf in leaves if tree.nodes[leaf].reward is not None)
    R = _rewards(tree, counted)
    if len(R) < 2 or not same(R):
        return Pool(counted, None)
    if R[0] <= 0:
        return Pool(counted, "all_wrong")
    paid = [part for leaf in counted for part in tree.nodes[leaf].parts.values() if part is not None]
    return Pool(counted, "all_right" if min(paid, default=R[0]) >= 1 else "tied")


def _rewards(tree: Tree, leaves: Sequence[int]) -> np.ndarray:
    return np.array([tree.nodes[leaf].reward for leaf in leaves], dtype=np.float64)


def _check(values: list[Advantage], trees: Sequence[Tree], name: str) -> None:
    """Refuse what a user's function returned where it does not fit the trees."""
    if _count(values) != len(trees):
        raise ConfigError(
            f"algorithm.advantage: {name!r} returned {_told(values)}; give a list for each of {len(trees)} trees"
        )
    for t, (tree, A) in enumerate(zip(trees, values)):
        if _count(A) != len(tree.nodes):
            raise ConfigError(
                f"algorithm.advantage: {name!r} returned {_told(A)} for tree {t}; give one for each of its "
                f"{len(tree.nodes)} nodes, prompts 0"
            )
        for place, (node, advantage) in enumerate(zip(tree.nodes, A)):
            if not _fits(advantage, len(node.ids_T)):
                raise ConfigError(
                    f"algorithm.advantage: {name!r} returned {advantage!r} for node {place} of tree {t}; give a finite "
                    f"number, or one for each of its {len(node.ids_T)} tokens"
                )


def _count(values: Any) -> int | None:
    return len(values) if hasattr(values, "__len__") else None


def _told(values: Any) -> str:
    return f"a {type(values).__name__}" if _count(values) is None else f"{len(values)} values"


def _fits(advantage: Any, length: int) -> bool:
    try:
        value = np.asarray(advantage, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return value.shape in ((), (length,)) and bool(np.isfinite(value).all())
