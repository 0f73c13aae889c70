"""A step's diagnostics beyond its means: what `branchwise diagnose` and the report read (docs/diagnostics.md)."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping

import torch

from branchwise.config import Config
from branchwise.diagnostics.pools import pool_metrics, pool_sums
from branchwise.diagnostics.responses import length_sums
from branchwise.diagnostics.spikes import SpikeScore
from branchwise.diagnostics.thoughts import ThoughtWindow, cost_sums, thought_sums
from branchwise.rollout.collect import Batch
from branchwise.train.world import World


class Diagnostics:
    """Keeps what looks back over steps."""

    def __init__(self, config: Config, world: World) -> None:
        self.world = world
        self.g = max(2, config.tree.thoughts)
        """The common size at which pools are compared."""
        self.spikes = SpikeScore()
        self.thoughts = ThoughtWindow(config.tree.thoughts, config.tree.answers)

    def step(self, batch: Batch, grad_norms: list[float], seconds: Mapping[str, float]) -> dict[str, float]:
        """Metrics of a step that took so many seconds by stage, over all processes."""
        drawn = batch.trees + batch.rejected
        pools = self.world.sum(pool_sums(drawn, self.g))
        thoughts = self.world.sum(thought_sums(drawn) | cost_sums(seconds))
        lengths = self.world.sum(length_sums(batch.trees))
        metrics = pool_metrics(pools) | self.thoughts.add(thoughts) | self.spikes.step(grad_norms)
        for outcome in ("right", "wrong"):
            if count := lengths.get(f"response_tokens/{outcome}/count"):
                metrics[f"response_tokens/{outcome}"] = lengths[f"response_tokens/{outcome}"] / count
        return metrics | memory()


def memory() -> dict[str, float]:
    """The most memory this process has held so far, in MB, and the most on its GPU."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    metrics = {"memory/peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6}
    if torch.cuda.is_available():
        metrics["memory/gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return metrics
