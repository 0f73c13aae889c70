"""The clipped surrogate, its KL and its corrections, a value per scored token (5 and 7 in docs/formulas.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from branchwise.algorithm.credit import ANSWER, THOUGHT
from branchwise.config import AlgorithmConfig

LOG_RATIO_CAP = 20.0
"""Log-ratios are held within ± this, as in verl: e^20 is far outside every clip range, and e^89 would be infinite."""
KL_CAP = 20.0
"""d = log π_ref − log π_θ is capped here in the KL, which then stays at 4.9e8 with gradient 0 instead of infinite."""


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


def objective(
    logp_S: Tensor, entropy_S: Tensor | None, scored: Scored, a: AlgorithmConfig
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a pack, and what there is to log of it.

    The loss of a token is −w·J + kl·k3 − entropy·H. As in TRL, the correction w acts on the surrogate J alone.

    Args:
        logp_S: log π_θ of the sampled tokens, at the sampling temperature, with gradient [S].
        entropy_S: entropy of π_θ at each of them, with gradient; None where `entropy` is 0 [S].
        scored: the rest.
        a: the objective's settings.

    Returns:
        The sum of weight · token loss, a scalar; and stats that add up over packs and processes: `NAME/sum` with
        `NAME/count`, and `max/NAME` (of which the maximum is taken). `means` makes metrics of them.
    """
    prox_S = logp_S.detach() if scored.prox_S is None else scored.prox_S
    ratio_S = importance_ratio(logp_S - prox_S, scored.unit_S, a)
    w_S = correction(prox_S, scored, a)
    loss_S = -w_S * surrogate(ratio_S, logp_S, scored, a)
    kl_S = None
    if a.kl > 0:
        assert scored.ref_S is not None, "a KL needs the reference's log-probs"
        kl_S = k3(logp_S, scored.ref_S)
        loss_S = loss_S + a.kl * kl_S
    if a.entropy > 0:
        assert entropy_S is not None, "an entropy bonus needs entropies"
        loss_S = loss_S - a.entropy * entropy_S
    loss = (scored.weight_S * loss_S).sum()
    with torch.no_grad():
        return loss, _stats(ratio_S, prox_S, w_S, kl_S, entropy_S, scored, a)


def importance_ratio(log_ratio_S: Tensor, unit_S: Tensor, a: AlgorithmConfig) -> Tensor:
    """r: each token's π_θ/π_prox, or the geometric mean over its y (GSPO, arXiv 2507.18071, equation 7) [S].

    The mean's gradient reaches every token of y.
    """
    if a.ratio == "sequence":
        length_Y = torch.bincount(unit_S)
        total_Y = torch.zeros(len(length_Y), dtype=log_ratio_S.dtype, device=log_ratio_S.device)
        log_ratio_S = (total_Y.index_add(0, unit_S, log_ratio_S) / length_Y)[unit_S]
    return log_ratio_S.clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP).exp()


def surrogate(ratio_S: Tensor, logp_S: Tensor, scored: Scored, a: AlgorithmConfig) -> Tensor:
    """J of each token: what a step of gradient ascent raises [S].

    `clip`: min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A), and where A < 0 at least dual_clip·A (arXiv 1912.09729).
    `cispo`: min(r, cispo_cap)·A·log π, the first factor without gradient (MiniMax-M1, arXiv 2506.13585, equation 4).
    """
    A_S = scored.advantage_S
    if a.surrogate == "cispo":
        return ratio_S.clamp(max=a.cispo_cap).detach() * A_S * logp_S
    low_S, high_S = clip_range(scored.segment_S, a)
    J_S = torch.minimum(ratio_S * A_S, ratio_S.clamp(1 - low_S, 1 + high_S) * A_S)
    if a.dual_clip is not None:
        J_S = torch.where(A_S < 0, torch.maximum(J_S, a.dual_clip * A_S), J_S)
    return J_S


def clip_range(segment_S: Tensor, a: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """How far below and above 1 a token's ratio may go; answers may have a range of their own [S], [S]."""
    low = a.clip_low if a.answer_clip_low is None else a.answer_clip_low
    high = a.clip_high if a.answer_clip_high is None else a.answer_clip_high
    answer_S = segment_S == ANSWER
    return torch.where(answer_S, low, a.clip_low), torch.where(answer_S, high, a.clip_high)


def k3(logp_S: Tensor, ref_S: Tensor) -> Tensor:
    """The KL to the reference, expm1(d) − d with d = log π_ref − log π_θ ≤ KL_CAP, in float32 at least [S].

    The estimator k3 of http://joschu.net/blog/kl-approx.html: unbiased and never negative.
    """
    d_S = (ref_S - logp_S).to(torch.promote_types(logp_S.dtype, torch.float32)).clamp(max=KL_CAP)
    return torch.expm1(d_S) - d_S


def correction(prox_S: Tensor, scored: Scored, a: AlgorithmConfig) -> Tensor:
    """w = min(C, π_prox(o|x) / μ(o|q_n)), without gradient; 1 where it is off [S].

    x is the prompt that the pack conditions on. Where that is not q_n the quotient is `importance`'s; under `original`
    such tokens have w = 1, since contexts, not engines, would be compared.
    """
    if a.correction is None:
        return torch.ones_like(prox_S)
    w_S = (prox_S - scored.sampler_S).exp().clamp(max=a.correction).detach()
    return w_S if a.anchor == "importance" else torch.where(scored.own_S, w_S, 1.0)


def means(stats: dict[str, float]) -> dict[str, float]:
    """Metrics from summed stats: each NAME as sum over count, maxima as they are; nothing where nothing was counted."""
    metrics = {key: value for key, value in stats.items() if key.startswith("max/")}
    for key, number in stats.items():
        if key.endswith("/count") and number > 0:
            name = key.removesuffix("/count")
            metrics[name] = stats[f"{name}/sum"] / number
    return metrics


def _stats(
    ratio_S: Tensor,
    prox_S: Tensor,
    w_S: Tensor,
    kl_S: Tensor | None,
    entropy_S: Tensor | None,
    scored: Scored,
    a: AlgorithmConfig,
) -> dict[str, float]:
    """Sums, counts and maxima over the pack's tokens.

    clip_low, clip_high (by segment): share of tokens whose gradient the clip takes; under `cispo` those capped.
    dual_clip: share whose gradient the dual clip takes. correction: mean w of the tokens that have one.
    mismatch: |log π_prox − log μ| where both have the same prompt; mismatch_kl: KL(μ‖π_prox) there, by k3.
    context_shift/n: log μ(o|q_n) − log π_prox(o|q0).
    """
    everywhere_S = torch.ones_like(scored.own_S)
    low_S, high_S = clipped(ratio_S, scored, a)
    mismatch_S = (prox_S - scored.sampler_S).abs()
    mismatch_kl_S = k3(scored.sampler_S, prox_S)
    averaged = [
        ("mismatch", mismatch_S, scored.own_S),
        ("mismatch_kl", mismatch_kl_S, scored.own_S),
        ("ratio", ratio_S, everywhere_S),
    ]
    for name, segment in (("thought", THOUGHT), ("answer", ANSWER)):
        here_S = scored.segment_S == segment
        averaged += [(f"clip_low/{name}", low_S, here_S), (f"clip_high/{name}", high_S, here_S)]
    if kl_S is not None:
        averaged.append(("kl", kl_S, everywhere_S))
    if entropy_S is not None:
        averaged.append(("entropy", entropy_S, everywhere_S))
    if a.dual_clip is not None:
        averaged.append(("dual_clip", (ratio_S > a.dual_clip) & (scored.advantage_S < 0), everywhere_S))
    if a.correction is not None:
        corrected_S = everywhere_S if a.anchor == "importance" else scored.own_S
        averaged += [("correction", w_S, corrected_S), ("correction_capped", w_S >= a.correction, corrected_S)]
    for n in torch.unique(scored.phrasing_S[~scored.own_S]).tolist():
        averaged.append((f"context_shift/{n}", scored.sampler_S - prox_S, ~scored.own_S & (scored.phrasing_S == n)))
    stats = {f"{name}/sum": (x_S * here_S).sum() for name, x_S, here_S in averaged}
    stats |= {f"{name}/count": here_S.sum() for name, _, here_S in averaged}
    if len(ratio_S):
        stats |= {"max/ratio": ratio_S.max(), "max/mismatch": (mismatch_S * scored.own_S).max()}
    return dict(zip(stats, torch.stack([value.float() for value in stats.values()]).tolist()))


def clipped(ratio_S: Tensor, scored: Scored, a: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Which tokens the clip takes the gradient of, below the range (A < 0) and above it (A > 0); bool [S], [S]."""
    if a.surrogate == "cispo":
        return torch.zeros_like(scored.own_S), ratio_S > a.cispo_cap
    low_S, high_S = clip_range(scored.segment_S, a)
    A_S = scored.advantage_S
    return (ratio_S < 1 - low_S) & (A_S < 0), (ratio_S > 1 + high_S) & (A_S > 0)
