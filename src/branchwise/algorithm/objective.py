"""The clipped surrogate, its KL and its corrections, a value per scored token (equations 5 to 7 of the docs)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Scored:
    """The sampled tokens of a pack, each of them once, all [S]."""

    advantage_S: Tensor
    """float32 A."""
    weight_S: Tensor
    """float32; the loss of a pack is the sum of weight · token loss, already divided by the optimizer step's counts."""
    sampler_S: Tensor
    """float32 log μ, under the prompt that the token was sampled after."""
    unit_S: Tensor
    """int64: tokens of one number are one y, numbered from 0 within the pack."""
    segment_S: Tensor
    """int64: THOUGHT or ANSWER."""
    phrasing_S: Tensor
    """int64 n: the phrasing that the token was sampled after."""
    own_S: Tensor
    """bool: whether the pack conditions the token on the prompt it was sampled after."""
    prox_S: Tensor | None = None
    """float32 log π_prox; None where the batch has one update, and π_prox is π_θ itself."""
    ref_S: Tensor | None = None
    """float32 log π_ref; None without KL."""
