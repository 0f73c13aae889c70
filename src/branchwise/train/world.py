"""The processes of a run, through accelerate: sums over them, and whose turn it is to write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import gather_object
from torch import nn

from branchwise.config import ConfigError, TrainConfig


class World:
    """Losses are divided by counts summed over all processes, so gradients are summed too, never averaged.

    Raises:
        ConfigError: a tracker whose package is missing; accelerate would leave it out without a word.
    """

    def __init__(self, config: TrainConfig) -> None:
        trackers = list(config.trackers)
        there = {str(tracker) for tracker in get_available_trackers()} if trackers else set()
        if missing := [name for name in trackers if name not in there]:
            raise ConfigError(f"train.trackers: {missing[0]!r} needs its package; pip install {missing[0]}")
        self.accelerator = Accelerator(
            cpu=config.device == "cpu", log_with=trackers or None, project_dir=config.output_dir if trackers else None
        )
        self.rank = self.accelerator.process_index
        self.size = self.accelerator.num_processes

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> int:
        """This process's part of `count` questions."""
        return count // self.size + (self.rank < count % self.size)

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """The values added up by key (maxima under `max/`); a process may lack keys that others have."""
        if self.size == 1:
            return values
        total: dict[str, float] = defaultdict(float)
        for part in gather_object([values]):
            for key, value in part.items():
                total[key] = max(total[key], value) if key.startswith("max/") else total[key] + value
        return dict(total)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the gradients up in place, in one message for each type; a process without a gradient adds zeros."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype[parameter.dtype].append(parameter)
        for group in by_dtype.values():
            flat = torch.cat([p.grad.flatten() for p in group if p.grad is not None])
            dist.all_reduce(flat)
            for parameter, grad in zip(group, flat.split([p.numel() for p in group])):
                parameter.grad = grad.view_as(parameter)

    def gather(self, items: list) -> list:
        """Every process's items, in the order of the processes."""
        return gather_object(items) if self.size > 1 else items

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()
