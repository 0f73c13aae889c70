"""The weights that the in-process engine samples with: the policy itself, or a copy in another type or place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class SamplingWeights:
    """A transformers model to sample with.

    Args:
        policy: peft-wrapped or not. It is used itself where it is of this type and place, and where it is quantized.
        dtype: to sample in.
        device: to sample on.
    """

    def __init__(self, policy: Any, dtype: torch.dtype, device: torch.device) -> None:
        base = policy.get_base_model() if _is_peft(policy) else policy
        at_hand = base.dtype == dtype and base.device == torch.empty(0, device=device).device
        self.shared = at_hand or getattr(base, "is_quantized", False)
        self.model = base if self.shared else _converted(_merged(policy), dtype, device)

    @torch.no_grad()
    def take(self, policy: Any) -> None:
        """Copy the policy's present weights, adapters merged; a shared model has them already."""
        if self.shared:
            return
        mine = dict(self.model.named_parameters())
        theirs = dict(_merged(policy).named_parameters())
        if mine.keys() != theirs.keys():
            raise ValueError(f"the policy's weights are not the sampler's: {sorted(mine.keys() ^ theirs.keys())[:4]}")
        for name, weight in mine.items():
            weight.copy_(theirs[name])

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        """The model without dropout; afterwards as it was."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            yield self.model
        finally:
            for module in training:
                module.training = True


def _is_peft(model: Any) -> bool:
    return hasattr(model, "merge_and_unload")


def _merged(policy: Any) -> Any:
    """The policy as a plain model; a copy where it has adapters, for unmerging them would not be exact."""
    return copy.deepcopy(policy).merge_and_unload() if _is_peft(policy) else policy


def _converted(model: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A copy whose parameters are of another type. Buffers keep theirs: rotary frequencies are wrong in bfloat16."""
    model = copy.deepcopy(model).requires_grad_(False).to(device)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
        weight.grad = None
    return model
