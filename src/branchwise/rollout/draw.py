"""From logits to tokens and their log-probs under the sampling distribution (log μ)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from branchwise.rollout.engine import Sampling

BLOCK = 64
"""Tokens whose weights are summed before the search, which then reads V/64 sums and one block. Most V are multiples."""
CACHED = 1 << 19
"""Logits in hand at once on a CPU, so that they stay in its cache from the softmax to the search."""
AT_ONCE = 1 << 26
"""The same on other devices, where it bounds memory."""


def draw(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token a row by inverting the distribution function, in order of token ids.

    Args:
        logits_RV: as the model gives them, of any type; computed with in float32 or better.
        uniform_R: in [0, 1).
        sampling: its temperature, then top-k, top-p and min-p, in this order (as in `generate`).

    Returns:
        int64 ids [R] and float32 log μ [R]: the temperature applied, over the full vocabulary or, where truncated,
        over what is left. At temperature 0 the token of the highest logit, drawn with certainty: log μ is 0.

    Raises:
        FloatingPointError: a row's logits are not finite.
    """
    if sampling.temperature == 0:
        highest_R, token_R = logits_RV.max(-1)
        _check_finite(highest_R)
        return token_R, torch.zeros(len(token_R), device=token_R.device)
    rows = max(1, (CACHED if logits_RV.device.type == "cpu" else AT_ONCE) // logits_RV.shape[1])
    parts = [_draw(*part, sampling) for part in zip(logits_RV.split(rows), uniform_R.split(rows))]
    token_R, logprob_R = (torch.cat(part) for part in zip(*parts))
    return token_R, logprob_R


def _draw(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32)) / sampling.temperature
    logits_RV.sub_(logits_RV.amax(-1, keepdim=True))
    _truncate_(logits_RV, sampling)
    weight_RV = logits_RV.exp_()
    token_R, total_R = _invert(weight_RV, uniform_R)
    _check_finite(total_R)
    return token_R, (weight_RV.gather(1, token_R[:, None])[:, 0] / total_R).log().to(torch.float32)


def _check_finite(x_R: Tensor) -> None:
    if not torch.isfinite(x_R).all():
        raise FloatingPointError(
            "the sampler's logits are not finite: the weights have diverged (lower train.learning_rate, or go "
            "on from an earlier checkpoint), or overflow in its dtype (sampling.dtype: float32)"
        )


def _invert(weight_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """The first id whose cumulated weight exceeds uniform · total, and the total; an id of weight 0 never is."""
    weight_RCB = pad(weight_RV, (0, -weight_RV.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    block_RC = weight_RCB.sum(-1).to(uniform_R.dtype)
    cumulated_RC = block_RC.cumsum(-1)
    total_R = cumulated_RC[:, -1]
    aim_R = torch.minimum(uniform_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R)))
    chosen_R = torch.searchsorted(cumulated_RC, aim_R[:, None], right=True)[:, 0].clamp_(max=cumulated_RC.shape[1] - 1)
    row_R = torch.arange(len(aim_R), device=aim_R.device)
    within_RB = weight_RCB[row_R, chosen_R].to(uniform_R.dtype).cumsum(-1)
    aim_R = aim_R - (cumulated_RC[row_R, chosen_R] - block_RC[row_R, chosen_R])
    # the block's own sum may round below what is aimed at
    last_R = within_RB[:, -1]
    aim_R = torch.minimum(aim_R.clamp(min=0), torch.nextafter(last_R, torch.zeros_like(last_R)))
    return chosen_R * BLOCK + torch.searchsorted(within_RB, aim_R[:, None], right=True)[:, 0], total_R


def _truncate_(scaled_RV: Tensor, sampling: Sampling) -> None:
    """Set what top-k, top-p and min-p leave out to -inf."""
    lowest = float("-inf")
    if 0 < sampling.top_k < scaled_RV.shape[-1]:
        kth_R1 = scaled_RV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled_RV.masked_fill_(scaled_RV < kth_R1, lowest)
    if sampling.top_p < 1:
        sorted_RV, order_RV = scaled_RV.sort(dim=-1, descending=True, stable=True)
        prob_RV = sorted_RV.softmax(-1)
        before_RV = prob_RV.cumsum(-1) - prob_RV  # mass of the likelier tokens: the first is always kept
        outside_RV = torch.zeros_like(order_RV, dtype=torch.bool).scatter_(1, order_RV, before_RV >= sampling.top_p)
        scaled_RV.masked_fill_(outside_RV, lowest)
    if sampling.min_p > 0:
        # the likeliest token's scaled logit is 0
        scaled_RV.masked_fill_(scaled_RV.exp() < sampling.min_p, lowest)
