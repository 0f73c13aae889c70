"""What a step's trees say, as numbers a user can act on."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from branchwise.algorithm.advantage import pools
from branchwise.rollout.collect import Batch
from branchwise.tree import Tree

UNIFORM_KINDS = ("all_right", "all_wrong", "tied")


class Stopwatch:
    """Seconds by stage of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.background: dict[str, float] = {}
        """Those of the batch where it was sampled ahead, while other stages ran."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def timed(self, stage: str, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """`function`, its time counted to `stage`."""

        def run(argument: Any) -> None:
            with self(stage):
                function(argument)

        return run


class Spread:
    """Watches for rewards that are the same for every response, step after step.

    Args:
        steps: so many of them are worth a warning.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._flat: Counter[str] = Counter()

    def warnings(self, trees: list[Tree]) -> Iterator[str]:
        """What to say after a step with these trees."""
        values = defaultdict(set)
        for tree in trees:
            for place in tree.leaves():
                for name, part in tree.nodes[place].parts.items():
                    values[name].add(part)
        for name, found in values.items():
            found.discard(None)
            self._flat[name] = self._flat[name] + 1 if len(found) == 1 else 0
            if self._flat[name] and self._flat[name] % self._steps == 0:
                yield (
                    f"reward {name!r} was {next(iter(found)):g} for every response of {self._flat[name]} steps: it "
                    "teaches nothing; look at what it reads and at some responses"
                )


def batch_sums(batch: Batch) -> dict[str, float]:
    """Sums over the batch's trees that add up over processes; `batch_metrics` makes shares and means of them.

    Uniform shares are counted over every tree drawn (before `resample` replaced any) and over those kept.
    """
    sums: dict[str, float] = defaultdict(float)
    for tree in batch.trees + batch.rejected:
        _add_pools(sums, tree, "drawn")
    for tree in batch.trees:
        _add_pools(sums, tree, "kept")
        _add_leaves(sums, tree)
        sums["staleness"] += tree.staleness
        sums["max/staleness"] = max(sums["max/staleness"], tree.staleness)
    sums["trees"] = len(batch.trees)
    sums["rejected"] = len(batch.rejected)
    for how, count in batch.expanded.items():
        sums[f"expanded/{how}"] = count
    for tree in batch.trees + batch.rejected:
        for node in tree.nodes:
            sums["sampled_tokens"] += int(node.sampled_T.sum())
            sums["sampled_logprob"] += float(node.logprobs_T.sum())
    return dict(sums)


def _add_pools(sums: dict[str, float], tree: Tree, which: str) -> None:
    for level in ("question", "phrasing"):
        for pool in pools(tree, level):
            sums[f"{which}/{level}/pools"] += 1
            sums[f"{which}/{level}/small"] += pool.counted < 2
            for kind in UNIFORM_KINDS:
                sums[f"{which}/{level}/{kind}"] += pool.uniform == kind


def _add_leaves(sums: dict[str, float], tree: Tree) -> None:
    for place in tree.leaves():
        leaf = tree.nodes[place]
        sums["leaves"] += 1
        if leaf.reward is None:
            sums["missing"] += 1
        else:
            sums["reward"] += leaf.reward
            sums["reward_squared"] += leaf.reward**2
        for name, value in leaf.parts.items():
            if value is not None:
                sums[f"part/{name}"] += value
                sums[f"part/{name}/count"] += 1
    for node in tree.nodes:
        if node.kind == "phrasing":
            continue
        sums[f"{node.kind}/nodes"] += 1
        sums[f"{node.kind}/tokens"] += len(node.ids_T)
        sums[f"{node.kind}/truncated"] += node.finish == "length"
        sums[f"{node.kind}/unclosed"] += node.unclosed


def missing_reasons(trees: list[Tree]) -> Counter[str]:
    """Why rewards are missing, counted."""
    return Counter(
        tree.nodes[i].reason or "unknown" for tree in trees for i in tree.leaves() if tree.nodes[i].reward is None
    )


def batch_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Means and shares from `batch_sums`, summed over processes.

    `entropy_estimate` is the mean of −log μ over the sampled tokens, in nats: without bias, and for free.
    """
    get = sums.get
    leaves, rewarded = get("leaves", 0), get("leaves", 0) - get("missing", 0)
    metrics: dict[str, float] = {"leaves": leaves, "trees": sums["trees"], "sampled_tokens": sums["sampled_tokens"]}
    if rewarded:
        mean = get("reward", 0) / rewarded
        metrics["reward"] = mean
        metrics["reward_std"] = float(np.sqrt(max(0.0, get("reward_squared", 0) / rewarded - mean**2)))
    metrics["missing_rewards"] = get("missing", 0)
    if sums["trees"]:
        metrics |= {"staleness": get("staleness", 0) / sums["trees"], "max/staleness": get("max/staleness", 0)}
    if sums["sampled_tokens"]:
        metrics["entropy_estimate"] = -sums["sampled_logprob"] / sums["sampled_tokens"]
    for key in [key for key in sums if key.startswith("part/") and not key.endswith("/count")]:
        metrics[f"reward/{key.removeprefix('part/')}"] = sums[key] / sums[f"{key}/count"]
    for which in ("drawn", "kept"):
        for level in ("question", "phrasing"):
            if count := get(f"{which}/{level}/pools", 0):
                shares = {kind: get(f"{which}/{level}/{kind}", 0) / count for kind in UNIFORM_KINDS}
                prefix = "uniform" if which == "drawn" else "uniform_kept"
                metrics[f"{prefix}/{level}"] = sum(shares.values())
                if which == "drawn":
                    metrics |= {f"uniform/{level}/{kind}": share for kind, share in shares.items()}
                    metrics[f"pools_too_small/{level}"] = get(f"{which}/{level}/small", 0)
    for kind in ("thought", "answer", "response"):
        if nodes := get(f"{kind}/nodes", 0):
            metrics[f"{kind}_tokens"] = get(f"{kind}/tokens", 0) / nodes
            if kind == "thought":
                metrics["unclosed"] = get("thought/unclosed", 0) / nodes
            else:
                metrics[f"truncated_{kind}s"] = get(f"{kind}/truncated", 0) / nodes
    metrics["replaced_questions"] = get("rejected", 0)
    expanded = {key: count for key, count in sums.items() if key.startswith("expanded/")}
    metrics |= expanded | {"expanded_questions": sum(expanded.values())}
    return metrics
