"""What each sampled token weighs in an optimizer step's loss.

GRPO-MA's objective (arXiv 2509.24494) is the mean over thoughts of J(thought) plus `answer_weight` times the mean over
answers of J(answer), J(y) being the clipped surrogate of node y: a thought counts once, however many answers follow it.
A token's weight under each `aggregation`; an answer's is multiplied by answer_weight:

    sequence   1 / (n_thoughts · |y|)          1 / (n_answers · |y|)           GRPO, GRPO-MA: each node's mean
    token      1 / n_tokens                    1 / n_tokens                    DAPO: each tree token once
    constant   1 / (n_thoughts · L_thought)    1 / (n_answers · L_answer)      Dr.GRPO: L is the sampling limit

With joint segments a response, thought and answer together, is one node y, counted among the thoughts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from branchwise.algorithm.advantage import Advantage, pools
from branchwise.algorithm.credit import ANSWER, THOUGHT, Credit
from branchwise.config import Config
from branchwise.tree import Tree


def count(trees: Sequence[Tree], config: Config) -> dict[str, float]:
    """How many `thoughts`, `answers` and `tokens` count; to be summed over all trees of an optimizer step.

    Out of all counts: nodes without a rewarded leaf, and under `uniform: drop` pools that are uniform or have not even
    two rewards. Unclosed thoughts under `unclosed: mask` are out of the tokens alone. Forced tokens are no tokens here.
    """
    counts = {"thoughts": 0.0, "answers": 0.0, "tokens": 0.0}
    for tree in trees:
        unit, segment = _units(tree, config)
        counted = np.unique(unit[unit >= 0])
        counts["thoughts"] += int((segment[counted] == THOUGHT).sum())
        counts["answers"] += int((segment[counted] == ANSWER).sum())
        counts["tokens"] += int(_trained_tokens(tree, unit, config).sum())
    return counts


def credit(
    trees: Sequence[Tree], advantages: Sequence[Advantage], counts: Mapping[str, float], config: Config
) -> list[Credit]:
    """Each tree's credit for one optimizer step.

    Args:
        trees: this process's trees of the optimizer step, or some of them.
        advantages: theirs, as `advantages` gives them.
        counts: `count` of the whole optimizer step, summed over all processes.
        config: the run's.
    """
    return [_credit(tree, A, counts, config) for tree, A in zip(trees, advantages)]


def _credit(tree: Tree, A: Advantage, counts: Mapping[str, float], config: Config) -> Credit:
    unit, segment = _units(tree, config)
    tokens = _trained_tokens(tree, unit, config)
    length = np.bincount(unit[unit >= 0], tokens[unit >= 0], minlength=len(tree.nodes))
    weight = np.zeros(len(tree.nodes))
    for place in np.flatnonzero(tokens):
        weight[place] = _token_weight(int(segment[place]), length[unit[place]], counts, config)
    return Credit(A, weight, unit, segment, _context(tree, config))


def _token_weight(segment: int, length: float, counts: Mapping[str, float], config: Config) -> float:
    a, n = config.algorithm, counts["answers" if segment == ANSWER else "thoughts"]
    weight = a.answer_weight if segment == ANSWER else 1.0
    if a.aggregation == "sequence":
        return weight / (n * length)
    if a.aggregation == "token":
        return weight / counts["tokens"]
    return weight / (n * _limit(segment, config))


def _limit(segment: int, config: Config) -> int:
    """L: the most tokens that a node may have."""
    s = config.sampling
    if config.joint or config.tree.marker is None:
        return s.max_thought_tokens + s.max_answer_tokens
    return s.max_answer_tokens if segment == ANSWER else s.max_thought_tokens


def _units(tree: Tree, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Each node's unit (the place of its y's first node; -1 where the node does not count) and its segment."""
    unit = np.full(len(tree.nodes), -1)
    segment = np.full(len(tree.nodes), THOUGHT)
    for pool in pools(tree, config.algorithm.pool):
        if pool.mute and config.tree.uniform == "drop":
            continue
        for leaf in pool.leaves:
            _, thought, *answer = tree.path(leaf)
            unit[thought] = thought
            for place in answer:
                unit[place] = thought if config.joint else place
                segment[place] = THOUGHT if config.joint else ANSWER
    return unit, segment


def _trained_tokens(tree: Tree, unit: np.ndarray, config: Config) -> np.ndarray:
    """How many tokens of each node are trained on."""
    masks = config.tree.unclosed == "mask"
    return np.array(
        [
            0 if unit[place] < 0 or (masks and node.unclosed) else int(node.sampled_T.sum())
            for place, node in enumerate(tree.nodes)
        ]
    )


def _context(tree: Tree, config: Config) -> dict[int, int]:
    """The prompt that ratios are conditioned on, by phrasing: its own, or the original question's (TA-GRPO)."""
    roots = tree.phrasings()
    return {root: root if config.algorithm.anchor == "behaviour" else roots[0] for root in roots}
