"""Noise of answers within a thought against differences between thoughts, and the shape that they advise."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from branchwise.tree import Tree

WINDOW = 50
"""Steps whose sums the advice is drawn from: one step's variances are noisy, old ones are another policy's."""


def thought_sums(trees: Iterable[Tree]) -> dict[str, float]:
    """Sums over the thoughts with two or more rewarded answers, which add up over processes and steps.

    within: sample variance (ddof 1) of the answers' rewards of one thought. spread: of the thoughts' values V under one
    phrasing; noise: the mean of s²/M under it, which is the part of Var V that the answers' noise makes.
    """
    sums: dict[str, float] = defaultdict(float)
    for tree in trees:
        for root in tree.phrasings():
            values, noise = [], []
            for thought in tree.children[root]:
                R = [r for leaf in tree.children[thought] if (r := tree.nodes[leaf].reward) is not None]
                if len(R) < 2:
                    continue
                s2 = float(np.var(R, ddof=1))
                values.append(float(np.mean(R)))
                noise.append(s2 / len(R))
                sums["within"] += s2
                sums["within/count"] += 1
            if len(values) >= 2:
                sums["spread"] += float(np.var(values, ddof=1))
                sums["noise"] += float(np.mean(noise))
                sums["spread/count"] += 1
        for node in tree.nodes:
            if node.kind in ("thought", "answer"):
                sums[f"{node.kind}s"] += 1
                sums[f"{node.kind}_tokens"] += len(node.ids_T)
        sums["leaves"] += sum(1 for _ in tree.leaves())
    return dict(sums)


def cost_sums(seconds: Mapping[str, float]) -> dict[str, float]:
    """What those trees' tokens took to sample and to learn from, and their leaves to reward, from seconds by stage."""
    return {
        "token_seconds": seconds.get("sampling", 0.0) + seconds.get("update", 0.0),
        "leaf_seconds": seconds.get("rewards", 0.0),
    }


@dataclass(frozen=True, slots=True)
class Advice:
    """How many thoughts and answers the variances and costs ask for."""

    within: float
    """σ_w²: mean variance of answers' rewards within a thought."""
    between: float
    """σ_b²: variance of thoughts' true values within a phrasing."""
    thought_cost: float
    """c_t: seconds of a thought. A token takes the same in either: each is sampled once, and trained on once."""
    answer_cost: float
    """c_a: seconds of an answer, its reward's among them."""
    answers: int | None
    """M*; None where thoughts do not differ, so that no M is enough."""
    thoughts: int | None
    """K that the present budget then pays for, at least 3."""


def advise(sums: dict[str, float], thoughts: int, answers: int) -> Advice | None:
    """M* = √(c_t·σ_w² / (c_a·σ_b²)), K = budget/(c_t + M·c_a), at least 3, from summed `thought_sums`.

    σ_b² = max(0, Var V − σ_w²/M). M* minimises the variance of a thought's value under a fixed budget, as two-stage
    sampling does (Cochran, Sampling Techniques, 1977, section 10.6). The budget is that of the present shape.

    Args:
        sums: of one step or of several, with their `cost_sums`; without, costs are in tokens, and a reward is free.
        thoughts: K at present.
        answers: M at present.

    Returns:
        None where no phrasing has two thoughts of two rewarded answers each.
    """
    if not sums.get("within/count") or not sums.get("spread/count"):
        return None
    within = sums["within"] / sums["within/count"]
    between = max(0.0, (sums["spread"] - sums["noise"]) / sums["spread/count"])
    c_t, c_a = _costs(sums)
    if between <= 0 or within <= 0:
        best = None if within > 0 else 1
    else:
        best = max(1, round(math.sqrt(c_t * within / (c_a * between))))
    budget = thoughts * (c_t + answers * c_a)
    k = None if best is None else max(3, round(budget / (c_t + best * c_a)))
    return Advice(within, between, c_t, c_a, best, k)


def _costs(sums: Mapping[str, float]) -> tuple[float, float]:
    """c_t and c_a."""
    token = sums.get("token_seconds", 0.0) / (sums["thought_tokens"] + sums["answer_tokens"]) or 1.0
    thought, answer = (sums[f"{kind}_tokens"] / sums[f"{kind}s"] for kind in ("thought", "answer"))
    return token * thought, token * answer + sums.get("leaf_seconds", 0.0) / sums["leaves"]


class ThoughtWindow:
    """The last `WINDOW` steps' sums, and the advice they give."""

    def __init__(self, thoughts: int, answers: int) -> None:
        self.thoughts, self.answers = thoughts, answers
        self._steps: deque[dict[str, float]] = deque(maxlen=WINDOW)

    def add(self, sums: dict[str, float]) -> dict[str, float]:
        """Take a step's sums, its costs among them; return its metrics: variances, costs, and the advice."""
        self._steps.append(sums)
        metrics = {}
        if now := advise(sums, self.thoughts, self.answers):
            metrics = {"variance/within": now.within, "variance/between": now.between}
            metrics |= {"seconds_per_thought": now.thought_cost, "seconds_per_answer": now.answer_cost}
        total: dict[str, float] = defaultdict(float)
        for step in self._steps:
            for key, value in step.items():
                total[key] += value
        advice = advise(total, self.thoughts, self.answers)
        if advice and advice.answers is not None and advice.thoughts is not None:
            metrics |= {"advice/answers": advice.answers, "advice/thoughts": advice.thoughts}
        return metrics
