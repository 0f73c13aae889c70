"""The one loop between data and update: draw questions, sample, reward, and accept, expand or draw again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from branchwise.algorithm.advantage import pools
from branchwise.config import Config
from branchwise.rollout.engine import Limb
from branchwise.tree import Tree


@dataclass(slots=True)
class Batch:
    """The trees of one step."""

    trees: list[Tree]
    """Accepted, to be trained on."""
    rejected: list[Tree] = field(default_factory=list)
    """Uniform, and replaced by others (`resample`)."""
    expanded: Counter[str] = field(default_factory=Counter)
    """Trees whose rephrasings were sampled because the original's pool was uniform, by how it was (`expand`)."""
    cursor: int = 0
    """Where the stream of questions stood after it."""
    logged: dict[str, list[float]] = field(default_factory=dict)
    """What reward functions gave to `log_metric`, by name."""


def collect(
    draw: Callable[[int], list[Tree]],
    grow: Callable[[list[Limb]], None],
    score: Callable[[list[Tree]], None],
    config: Config,
    count: int,
) -> Batch:
    """Collect `count` trees.

    Args:
        draw: gives so many further trees, their phrasings rendered and nothing sampled yet.
        grow: samples limbs.
        score: rewards the leaves that have no reward yet.
        config: its `tree` says what a tree is and what becomes of a uniform pool.
        count: questions of the batch (of this process).
    """
    batch = Batch([])
    budget = int(count * config.tree.resample_budget) if config.tree.uniform == "resample" else count
    while len(batch.trees) < count and budget > 0:
        trees = draw(min(count - len(batch.trees), budget))
        budget -= len(trees)
        first = 1 if config.tree.uniform == "expand" else None
        grow([limb for tree in trees for limb in limbs(tree, config)[:first]])
        score(trees)
        if config.tree.uniform == "expand":
            poor = [tree for tree in trees if is_uniform(tree, config)]
            batch.expanded.update(pools(tree, "question")[0].uniform or "too_small" for tree in poor)
            grow([limb for tree in poor for limb in limbs(tree, config)[1:]])
            score(poor)
        for tree in trees:
            replace = config.tree.uniform == "resample" and is_uniform(tree, config)
            (batch.rejected if replace else batch.trees).append(tree)
    return batch


def limbs(tree: Tree, config: Config) -> list[Limb]:
    """One limb a phrasing, the original first."""
    return [Limb(tree, place, config.tree.thoughts, config.tree.answers) for place in tree.phrasings()]


def is_uniform(tree: Tree, config: Config) -> bool:
    """Whether no pool of the tree has anything to compare."""
    return all(pool.mute for pool in pools(tree, config.algorithm.pool))
