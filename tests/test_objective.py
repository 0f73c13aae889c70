"""The surrogate, its KL and its corrections against values worked out by hand."""

from math import exp, expm1, log

import pytest
import torch

from branchwise.algorithm.credit import ANSWER, THOUGHT
from branchwise.algorithm.objective import KL_CAP, LOG_RATIO_CAP, Scored, k3, means, objective
from branchwise.config import AlgorithmConfig

F64 = torch.float64


def scored(
    advantages, *, weight=1.0, unit=None, segment=None, sampler=None, own=None, phrasing=None, prox=None, ref=None
):
    size = len(advantages)

    def tensor(values, default, dtype=F64):
        return torch.tensor([default] * size if values is None else values, dtype=dtype)

    return Scored(
        advantage_S=tensor(advantages, 0),
        weight_S=torch.full((size,), weight, dtype=F64),
        sampler_S=tensor(sampler, -1.0),
        unit_S=tensor(unit, 0, torch.int64),
        segment_S=tensor(segment, THOUGHT, torch.int64),
        phrasing_S=tensor(phrasing, 0, torch.int64),
        own_S=tensor(own, True, torch.bool),
        prox_S=None if prox is None else tensor(prox, 0),
        ref_S=None if ref is None else tensor(ref, 0),
    )


def run(logp, s, entropies=None, **settings):
    """Loss, gradient in log π, and stats."""
    logp_S = torch.tensor(logp, dtype=F64, requires_grad=True)
    entropy_S = None if entropies is None else torch.tensor(entropies, dtype=F64)
    loss, stats = objective(logp_S, entropy_S, s, AlgorithmConfig(**settings))
    return loss.item(), torch.autograd.grad(loss, logp_S)[0].tolist(), stats


def ratios(values, base=-1.0):
    """Log-probs whose ratios to `base` are these."""
    return [base + log(value) for value in values]


def test_clip_on_both_signs():
    r, A = [1.1, 1.5, 0.5, 1.1, 1.5, 0.5], [2.0, 2.0, 2.0, -2.0, -2.0, -2.0]
    loss, grad, stats = run(ratios(r), scored(A, prox=[-1.0] * 6))
    # A > 0: the ratio counts up to 1.2; A < 0: from 0.8 upwards
    assert loss == pytest.approx(-2 * (1.1 + 1.2 + 0.5) + 2 * (1.1 + 1.5 + 0.8))
    assert grad == pytest.approx([-2.2, 0, -1.0, 2.2, 3.0, 0])
    assert (stats["clip_high/thought/sum"], stats["clip_low/thought/sum"]) == (1, 1)
    assert stats["clip_low/thought/count"] == 6 and stats["max/ratio"] == pytest.approx(1.5)


def test_clip_ranges_below_and_above_differ():
    loss, grad, _ = run(ratios([1.25, 1.35, 0.75]), scored([1.0, 1.0, -1.0], prox=[-1.0] * 3), clip_high=0.3)
    assert loss == pytest.approx(-1.25 - 1.3 + 0.8) and grad == pytest.approx([-1.25, 0, 0])


def test_answers_may_have_a_clip_range_of_their_own():
    s = scored([1.0, 1.0, -1.0, -1.0], segment=[THOUGHT, ANSWER] * 2, prox=[-1.0] * 4)
    loss, grad, stats = run(ratios([1.3, 1.3, 0.7, 0.7]), s, answer_clip_high=0.4, answer_clip_low=0.35)
    assert loss == pytest.approx(-1.2 - 1.3 + 0.8 + 0.7) and grad == pytest.approx([0, -1.3, 0, 0.7])
    assert means(stats)["clip_high/thought"] == 0.5 and means(stats)["clip_high/answer"] == 0


def test_weights_multiply_each_tokens_loss():
    s = scored([1.0, -1.0], prox=[-1.0] * 2)
    s.weight_S = torch.tensor([0.25, 0.0], dtype=F64)
    loss, grad, _ = run(ratios([1.1, 1.1]), s)
    assert loss == pytest.approx(-0.275) and grad == pytest.approx([-0.275, 0])


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    s = scored([-2.0, -2.0, 2.0], prox=[-1.0] * 3)
    loss, grad, stats = run(ratios([2.0, 5.0, 5.0]), s, dual_clip=3.0)
    assert loss == pytest.approx(2 * 2 + 2 * 3 - 2 * 1.2) and grad == pytest.approx([4, 0, 0])
    assert means(stats)["dual_clip"] == pytest.approx(1 / 3)


def test_one_update_a_batch_needs_no_proximal_log_probs():
    logp, A = [-0.3, -2.0, -5.0], [1.5, -0.5, 0.7]
    loss, grad, stats = run(logp, scored(A))
    assert loss == pytest.approx(-sum(A)) and grad == pytest.approx([-a for a in A])  # r = 1
    assert run(logp, scored(A, prox=logp))[:2] == (loss, grad)
    assert stats["max/ratio"] == 1


def test_sequence_ratio_is_the_geometric_mean_of_a_unit():
    # units {0, 2}: r = (1.1 · 1.3)^½ ; {1}: 0.9
    s = scored([1.0, -1.0, 1.0], unit=[0, 1, 0], prox=[-1.0] * 3)
    loss, grad, _ = run(ratios([1.1, 0.9, 1.3]), s, ratio="sequence")
    mean = (1.1 * 1.3) ** 0.5
    assert loss == pytest.approx(-2 * mean + 0.9)
    # GSPO, equation 10: each token has the gradient of the whole, here 2 tokens · mean / 2
    assert grad == pytest.approx([-mean, 0.9, -mean])


def test_sequence_ratio_is_clipped_as_one():
    s = scored([1.0, 1.0, 1.0], unit=[0, 0, 1], prox=[-1.0] * 3)
    loss, grad, stats = run(ratios([0.9, 2.0, 1.1]), s, ratio="sequence")
    assert loss == pytest.approx(-2 * 1.2 - 1.1) and grad == pytest.approx([0, 0, -1.1])
    assert stats["clip_high/thought/sum"] == 2


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_gradients_agree_with_finite_differences(ratio):
    torch.manual_seed(0)
    prox_S, ref_S = (-1 - torch.rand(2, 7, dtype=F64)).tolist()
    s = scored(torch.randn(7).tolist(), unit=[0, 0, 1, 2, 1, 2, 2], prox=prox_S, ref=ref_S, weight=0.3)
    logp_S = (s.prox_S + 0.1 * torch.randn(7, dtype=F64)).requires_grad_()
    a = AlgorithmConfig(ratio=ratio, kl=0.1)
    assert torch.autograd.gradcheck(lambda x: objective(x, None, s, a)[0], logp_S)


def test_cispo_caps_the_ratio_itself_and_keeps_every_gradient():
    r, A = [1.5, 8.0, 0.01, 8.0], [1.0, 1.0, 1.0, -1.0]
    logp = ratios(r)
    loss, grad, stats = run(logp, scored(A, prox=[-1.0] * 4), surrogate="cispo", cispo_cap=5.0)
    factors = [1.5, 5.0, 0.01, -5.0]
    assert loss == pytest.approx(-sum(f * x for f, x in zip(factors, logp)))
    assert grad == pytest.approx([-f for f in factors])
    assert means(stats)["clip_high/thought"] == 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_case_b14_k3(dtype):
    d = torch.tensor([0.0, 1e-5, -1e-5, 1.0, 89.0, -200.0], dtype=dtype)
    logp_S = torch.zeros(6, dtype=dtype, requires_grad=True)
    kl_S = k3(logp_S, d)
    expected = [0.0, 5e-11, 5e-11, exp(1) - 2, expm1(KL_CAP) - KL_CAP, 199.0]
    assert kl_S.tolist() == pytest.approx(expected, rel=0.03, abs=1e-15)
    (grad,) = torch.autograd.grad(kl_S.sum(), logp_S)
    assert grad.tolist() == pytest.approx([0, -1e-5, 1e-5, 1 - exp(1), 0, 1], rel=0.01)


def test_k3_is_never_negative():
    d = torch.cat([torch.linspace(-3, 3, 100_001), torch.logspace(-12, 0, 100_001), -torch.logspace(-12, 0, 100_001)])
    assert (k3(torch.zeros_like(d), d) >= 0).all()


def test_kl_and_entropy_take_the_tokens_weight():
    s = scored([0.0, 0.0], ref=[-1.5, -0.5], weight=0.5)
    loss, grad, stats = run([-1.0, -1.0], s, entropies=[2.0, 3.0], kl=0.1, entropy=0.2)
    kl = [expm1(-0.5) + 0.5, expm1(0.5) - 0.5]
    assert loss == pytest.approx(0.5 * (0.1 * sum(kl) - 0.2 * 5))
    assert grad == pytest.approx([0.5 * 0.1 * (1 - exp(-0.5)), 0.5 * 0.1 * (1 - exp(0.5))])
    assert means(stats)["kl"] == pytest.approx(sum(kl) / 2) and means(stats)["entropy"] == 2.5


def test_anchored_ratios_do_not_see_the_sampler():
    """TA-GRPO: numerator and denominator are conditioned on the original; μ, under the rephrasing, is no part of it."""
    under_q0, under_qn = [-2.0, -3.0], [-0.5, -0.7]
    s = scored([1.0, -1.0], own=[True, False], phrasing=[0, 1], sampler=under_qn, prox=under_q0)
    loss, grad, stats = run([x + log(1.1) for x in under_q0], s)
    assert loss == pytest.approx(-1.1 + 1.1) and grad == pytest.approx([-1.1, 1.1])
    assert means(stats)["mismatch"] == pytest.approx(1.5)  # of the first, where the contexts agree
    assert stats["max/mismatch"] == pytest.approx(1.5)
    assert means(stats)["context_shift/1"] == pytest.approx(-0.7 + 3.0)
    assert "context_shift/0" not in means(stats)


CORRECTED = {"own": [True, True, False], "phrasing": [0, 1, 1], "sampler": [-1.2, -3.0, -1.5], "prox": [-1.0] * 3}


def test_correction_multiplies_the_surrogate_by_the_capped_ratio_to_the_sampler():
    loss, grad, stats = run(ratios([1.1] * 3), scored([1.0] * 3, **CORRECTED), correction=2.0)
    w = [exp(0.2), 2.0, 1.0]  # the second is capped; of the third the contexts differ
    assert loss == pytest.approx(-1.1 * sum(w)) and grad == pytest.approx([-1.1 * x for x in w])
    assert means(stats)["correction_capped"] == pytest.approx(1 / 2)  # of the two that are corrected
    assert means(stats)["correction"] == pytest.approx((exp(0.2) + 2.0) / 2)
    assert means(stats)["mismatch"] == pytest.approx((0.2 + 2.0) / 2) and stats["max/mismatch"] == pytest.approx(2.0)
    # KL(μ‖π) by exp(d) − 1 − d, d = log π − log μ
    assert means(stats)["mismatch_kl"] == pytest.approx((exp(0.2) - 1.2 + exp(2.0) - 3.0) / 2)


def test_importance_corrects_from_the_rephrasing_to_the_original():
    loss, *_ = run(ratios([1.1] * 3), scored([1.0] * 3, **CORRECTED), correction=2.0, anchor="importance")
    assert loss == pytest.approx(-1.1 * (exp(0.2) + 2.0 + exp(0.5)))


def test_correction_carries_no_gradient_and_leaves_the_kl_alone():
    s = scored([0.0], sampler=[-2.0], ref=[-1.5])
    loss, grad, _ = run([-1.0], s, correction=10.0, kl=1.0)
    assert loss == pytest.approx(expm1(-0.5) + 0.5) and grad == pytest.approx([1 - exp(-0.5)])
    _, grad, _ = run([-1.0], scored([1.0], sampler=[-2.0]), correction=10.0)
    assert grad == pytest.approx([-exp(1)])


@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
def test_a_ratio_beyond_all_bounds_leaves_loss_and_gradient_finite(surrogate):
    s = scored([1.0, -1.0, 1.0], prox=[-300.0, -300.0, 0.0])
    loss, grad, _ = run([0.0, 0.0, -300.0], s, surrogate=surrogate)
    assert all(abs(value) < 2 * exp(LOG_RATIO_CAP) for value in [loss, *grad])


def test_stats_add_up_over_packs():
    logp, A, unit = ratios([1.5, 0.5, 1.1]), [1.0, -1.0, 2.0], [0, 1, 2]
    whole = run(logp, scored(A, unit=unit, prox=[-1.0] * 3, ref=[-1.3] * 3), kl=0.1)
    parts = [run(logp[i : i + 1], scored(A[i : i + 1], prox=[-1.0], ref=[-1.3]), kl=0.1) for i in range(3)]
    assert whole[0] == pytest.approx(sum(part[0] for part in parts))
    for key, value in whole[2].items():
        found = [part[2][key] for part in parts]
        assert value == pytest.approx(max(found) if key.startswith("max/") else sum(found))


def test_an_empty_pack_has_no_loss():
    for ratio in ("token", "sequence"):
        loss, _, stats = run([], scored([]), ratio=ratio)
        assert loss == 0 and means(stats) == {}
