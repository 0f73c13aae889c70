"""pass@k, maj@k and intervals, against enumeration, arbitrary precision and simulation."""

import json
import math
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from branchwise.evaluate import bootstrap, majority_at_k, paired_difference, pass_at_k

ROOT = Path(__file__).parent.parent


def by_enumeration(n, c, k):
    right = [i < c for i in range(n)]
    subsets = list(combinations(range(n), k))
    return Fraction(sum(any(right[i] for i in s) for s in subsets), len(subsets))


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_that_of_all_subsets(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(float(by_enumeration(n, c, k)), abs=1e-12)


@pytest.mark.parametrize("c", [0, 1, 2, 7, 500, 50_000, 99_900, 99_999, 100_000])
@pytest.mark.parametrize("k", [1, 2, 64, 1000, 50_000, 100_000])
def test_pass_at_k_of_very_many_samples_is_exact(c, k):
    n = 100_000
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(("n", "c", "k"), [(99, 0, 100), (2, 0, 5), (4, 4, 8), (0, 0, 1)])
def test_fewer_samples_than_k_say_nothing(n, c, k):
    assert pass_at_k(n, c, k) is None


# 1 − C(7,5)/C(10,5) = 1 − 21/252; biased estimators give 0.83193 (with replacement) and, for the third, 0.68359
@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (10, 3, 5, 1 - 21 / 252), (4, 1, 2, 0.5), (4, 1, 4, 1.0), (5, 5, 5, 1.0), (16, 2, 8, 1 - 3003 / 12870),
        (200, 1, 1, 1 / 200), (200, 1, 100, 0.5), (7, 0, 3, 0.0),
    ],
)  # fmt: skip
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-9)


def test_pass_at_k_of_the_shared_cases():
    file = ROOT.parent / "shared" / "cases" / "cases.jsonl"
    if not file.is_file():
        pytest.skip("no ../shared/cases beside this checkout")
    cases = [case for line in file.open() if (case := json.loads(line))["kind"] == "d"]
    assert cases
    for case in cases:
        triples = case["input"]["n_c_k"]
        values = case["expected"].get("pass_at_k", [None] * len(triples))
        for (n, c, k), value in zip(triples, values, strict=True):
            assert pass_at_k(n, c, k) == (value if value is None else pytest.approx(value, abs=1e-9))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_counts_that_cannot_be_are_refused(n, c, k):
    with pytest.raises(ValueError, match="is not possible"):
        pass_at_k(n, c, k)


def test_the_majority_of_all_samples():
    assert majority_at_k(["7", "7", "8"], [True, True, False], 3) == 1.0
    assert majority_at_k(["7", "8", "8"], [True, False, False], 3) == 0.0


def test_equal_votes_share_the_score_and_no_vote_scores_nothing():
    assert majority_at_k(["7", "8"], [True, False], 2) == 0.5
    assert majority_at_k([None, None], [False, False], 2) == 0.0
    assert majority_at_k(["7", None, None], [True, False, False], 3) == 1.0


def test_the_majority_over_all_pairs():
    # of {7, 7, 8}: one pair 7 7 scores 1, two pairs 7 8 score a half
    assert majority_at_k(["7", "7", "8"], [True, True, False], 2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert majority_at_k(["7"], [True], 2) is None


def test_the_majority_over_random_subsets_is_near_that_over_all():
    # 40 of 60 samples right, all wrong ones alike: a hypergeometric majority of 5
    answers, right = ["a"] * 40 + ["b"] * 20, [True] * 40 + [False] * 20
    exact = sum(math.comb(40, j) * math.comb(20, 5 - j) for j in (3, 4, 5)) / math.comb(60, 5)
    assert majority_at_k(answers, right, 5) == pytest.approx(exact, abs=0.03)


def test_the_interval_is_that_of_a_mean_of_coin_throws():
    interval = bootstrap([i % 2 for i in range(100)])
    assert interval.mean == 0.5 and interval.n == 100
    assert interval.low == pytest.approx(0.402, abs=0.012) and interval.high == pytest.approx(0.598, abs=0.012)


def test_an_interval_stays_within_the_values_there_are():
    interval = bootstrap([1.0] * 19 + [0.0])
    assert interval.high == 1.0 and 0 < interval.low < 0.95


@pytest.mark.parametrize("k", [0, -1])
def test_votes_of_nobody_are_refused(k):
    with pytest.raises(ValueError, match="is not possible"):
        majority_at_k(["a"], [True], k)


def test_a_value_that_is_no_number_is_an_error():
    for value in (float("nan"), float("inf"), None):
        with pytest.raises(ValueError, match="leave its problem out"):
            bootstrap([1.0, value])


def test_no_problem_is_an_error():
    with pytest.raises(ValueError, match="no problem"):
        bootstrap([])


@pytest.mark.parametrize("problems", [30, 200])
def test_intervals_cover_the_truth_as_often_as_they_say(problems):
    """1,000 benchmarks of problems with difficulties drawn from a Beta, 8 samples each, pass@4."""
    rng = np.random.default_rng(1)
    a, b, n, k = 0.6, 1.2, 8, 4
    # E[1 − (1−p)^k] over Beta(a, b) is 1 − B(a, b+k)/B(a, b)
    truth = 1 - math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + k))
    table = np.array([pass_at_k(n, c, k) for c in range(n + 1)])
    covered = 0
    for trial in range(1000):
        c_B = rng.binomial(n, rng.beta(a, b, size=problems))
        interval = bootstrap(table[c_B], resamples=2000, seed=trial)
        covered += interval.low <= truth <= interval.high
    assert 930 <= covered <= 970, covered


def test_pairing_takes_out_the_problems_difficulty():
    rng = np.random.default_rng(0)
    hard = rng.random(200)
    first = {str(i): p for i, p in enumerate(hard)}
    second = {str(i): p + 0.05 for i, p in enumerate(hard)} | {"other": 9.0}
    interval = paired_difference(first, second)
    assert interval.n == 200 and interval.mean == pytest.approx(0.05) and interval.high - interval.low < 1e-9
    with pytest.raises(ValueError, match="in common"):
        paired_difference({"a": 1.0}, {"b": 1.0})
