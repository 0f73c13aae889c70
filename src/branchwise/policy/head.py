"""log π of given tokens, from hidden states: logits exist a tile at a time, [scored × vocabulary] never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

BLOCK = 4096
"""Vocabulary entries whose logits exist at once."""


def token_logprobs(
    hidden_SH: Tensor,
    head: nn.Module,
    target_S: Tensor,
    *,
    temperature: float = 1.0,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk: int = 1024,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of `target_S` under the sampling distribution, softmax(z) over the whole vocabulary.

    z = logits / temperature, where logits = scale · head(hidden), or softcap · tanh(scale · head(hidden) / softcap) for
    models that cap them. Under autocast products are taken in its type, sums over the vocabulary in float32.
    The backward computes the logits again, for rows whose upstream gradient is not 0.

    Args:
        hidden_SH: the states that predict the tokens, [S, H].
        head: the output layer. A plain `nn.Linear` takes the fused way; any other (LoRA, quantised) is called, and
            under checkpointing called again, on `chunk` rows at a time.
        target_S: int64 token ids.
        chunk: rows whose logits exist at once.
        entropy: also return the distribution's entropy.

    Returns:
        Log-probs [S], and entropies [S] in nats or None; float32, or float64 for float64 states.
    """
    inner = scale / (softcap or temperature)
    outer = softcap / temperature if softcap else None
    if type(head) is nn.Linear:
        products = _product_type(hidden_SH)
        bias_V = None if head.bias is None else inner * head.bias
        return _Fused.apply((inner * hidden_SH).to(products), head.weight, bias_V, target_S, outer, chunk, entropy)

    def scored(hidden_SH: Tensor, target_S: Tensor) -> tuple[Tensor, ...]:
        logits_SV = head(hidden_SH)
        z_SV = inner * logits_SV.to(_wide(logits_SV.dtype))
        logp_SV = torch.log_softmax(z_SV if outer is None else outer * z_SV.tanh(), -1)
        chosen_S = logp_SV.gather(1, target_S[:, None]).squeeze(1)
        return (chosen_S, -(logp_SV.exp() * logp_SV).sum(1)) if entropy else (chosen_S,)

    chunks = zip(hidden_SH.split(chunk), target_S.split(chunk))
    parts = [checkpoint(scored, *rows, use_reentrant=False) for rows in chunks]
    logp_S, *spread = (torch.cat(part) for part in zip(*parts))
    return logp_S, spread[0] if entropy else None


class _Fused(torch.autograd.Function):
    """z = W·hidden + b, or outer · tanh of that; sums over the vocabulary as in online softmax (arXiv 1805.02867)."""

    @staticmethod
    def forward(ctx: Any, hidden_SH, weight_VH, bias_V, target_S, outer, chunk, entropy):
        wide = _wide(hidden_SH.dtype)
        peak_S = torch.full(target_S.shape, torch.finfo(wide).min, dtype=wide, device=target_S.device)
        mass_S, energy_S, chosen_S = (torch.zeros_like(peak_S) for _ in range(3))
        for rows, columns, _, z in _tiles(hidden_SH, weight_VH, bias_V, outer, chunk):
            place, here = _place(target_S[rows], columns)
            chosen_S[rows] += z.gather(1, place).where(here, 0).squeeze(1)
            peak = torch.maximum(peak_S[rows], z.amax(1))
            shrink = (peak_S[rows] - peak).exp()
            p = (z - peak[:, None] if entropy else z.sub_(peak[:, None])).exp_()
            mass_S[rows] = shrink * mass_S[rows] + p.sum(1)
            if entropy:
                energy_S[rows] = shrink * energy_S[rows] + p.mul_(z).sum(1)
            peak_S[rows] = peak
        lse_S, mean_S = peak_S + mass_S.log(), energy_S / mass_S
        ctx.save_for_backward(hidden_SH, weight_VH, bias_V, target_S, lse_S, mean_S)
        ctx.outer, ctx.chunk = outer, chunk
        return chosen_S - lse_S, lse_S - mean_S if entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_S, grad_entropy_S):
        """dz = g · (1[target] − p) − g' · p · (z − mean z), with g and g' the gradients of log-prob and entropy."""
        hidden_SH, weight_VH, bias_V, target_S, lse_S, mean_S = ctx.saved_tensors
        grad_hidden_SH = torch.zeros_like(hidden_SH)
        grad_weight_VH = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        grad_bias_V = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] else None

        live = grad_S != 0 if grad_entropy_S is None else (grad_S != 0) | (grad_entropy_S != 0)
        live = live.nonzero().squeeze(1)
        state_SH, target_S, lse_S, grad_S = (x[live] for x in (hidden_SH, target_S, lse_S, grad_S))
        if grad_entropy_S is not None:
            mean_S, grad_entropy_S = mean_S[live], grad_entropy_S[live]
        grad_state_SH = torch.zeros_like(state_SH, dtype=lse_S.dtype)
        for rows, columns, weight, z in _tiles(state_SH, weight_VH, bias_V, ctx.outer, ctx.chunk):
            pull = grad_S[rows, None]
            if grad_entropy_S is not None:
                pull = pull + grad_entropy_S[rows, None] * (z - mean_S[rows, None])
            slope = None if ctx.outer is None else ctx.outer * (1 - (z / ctx.outer) ** 2)
            grad_z = z.sub_(lse_S[rows, None]).exp_().mul_(-pull)
            place, here = _place(target_S[rows], columns)
            grad_z.scatter_add_(1, place, grad_S[rows, None].where(here, 0))
            if slope is not None:
                grad_z *= slope
            if grad_bias_V is not None:
                grad_bias_V[columns] += grad_z.sum(0)
            grad_z = grad_z.to(state_SH.dtype)
            _add_product(grad_state_SH[rows], grad_z, weight)
            if grad_weight_VH is not None:
                _add_product(grad_weight_VH[columns], grad_z.T, state_SH[rows])
        grad_hidden_SH[live] = grad_state_SH.to(hidden_SH.dtype)
        return grad_hidden_SH, grad_weight_VH, grad_bias_V, None, None, None, None


def _tiles(
    hidden_SH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, outer: float | None, chunk: int
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Each tile of z, with its rows, its columns and their weight in the type of the products."""
    for first in range(0, len(weight_VH), BLOCK):
        columns = slice(first, min(first + BLOCK, len(weight_VH)))
        weight = weight_VH[columns].to(hidden_SH.dtype)
        for start in range(0, len(hidden_SH), chunk):
            rows = slice(start, start + chunk)
            z = (hidden_SH[rows] @ weight.T).to(_wide(hidden_SH.dtype))
            if bias_V is not None:
                z += bias_V[columns]
            yield rows, columns, weight, z if outer is None else z.tanh_().mul_(outer)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _place(target_S: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Where in a block of the vocabulary each target stands, and whether it does, both [S, 1]."""
    place = target_S[:, None] - columns.start
    size = columns.stop - columns.start
    return place.clamp(0, size - 1), (place >= 0) & (place < size)


def _product_type(hidden_SH: Tensor) -> torch.dtype:
    device = hidden_SH.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_SH.dtype


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums over the vocabulary."""
    return torch.promote_types(dtype, torch.float32)
