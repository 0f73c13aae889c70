"""What n samples of each problem say: pass@k, maj@k, and intervals over problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

EXACT_SUBSETS = 2000
"""maj@k goes through all subsets of k samples where there are at most so many, and through so many random ones else."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over problems with its 95% interval."""

    mean: float
    low: float
    high: float
    n: int
    """Problems behind it."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Probability that at least one of k samples, drawn from the n without replacement, is right: 1 − C(n−c,k)/C(n,k).

    The unbiased estimator of Codex (arXiv 2107.03374, equation 1), as a sum of logarithms over min(c, k) terms: exact
    to 1e-12 for any n.

    Args:
        n: samples of the problem.
        c: how many of them are right.
        k: how many may be tried.

    Returns:
        None where n < k: so few samples say nothing of k tries.

    Raises:
        ValueError: k is less than 1, or c is not between 0 and n.
    """
    if k < 1 or not 0 <= c <= n:
        raise ValueError(f"pass@k: n={n}, c={c}, k={k} is not possible; give 0 <= c <= n and k >= 1")
    if n < k:
        return None
    if n - c < k:
        return 1.0
    few, many = sorted((c, k))  # the quotient of binomials is symmetric in c and k
    return 0.0 - math.expm1(math.fsum(math.log1p(-many / (n - j)) for j in range(few)))  # not -0.0 where c = 0


def majority_at_k(
    answers: Sequence[str | None], correct: Sequence[bool | float], k: int, seed: int = 0
) -> float | None:
    """Expected score of the most frequent answer among k of the samples, drawn without replacement (maj@k).

    A sample without an answer has no vote; a subset without any vote scores 0; equal votes share the score. Exact over
    all subsets up to `EXACT_SUBSETS` of them, else the mean over so many random ones.

    Args:
        answers: each sample's final answer, written in one form, or None.
        correct: whether it is right; equal answers that were graded apart count as their mean.
        k: votes.
        seed: of the random subsets.

    Returns:
        None where there are fewer than k samples.

    Raises:
        ValueError: k is less than 1.
    """
    if k < 1:
        raise ValueError(f"maj@k: k={k} is not possible; give k >= 1")
    n = len(answers)
    if n < k:
        return None
    credit: dict[str, list[float]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            credit.setdefault(answer, []).append(float(right))
    score = {answer: float(np.mean(values)) for answer, values in credit.items()}
    if math.comb(n, k) <= EXACT_SUBSETS:
        subsets: Sequence[Sequence[int]] = list(combinations(range(n), k))
    else:
        rng = np.random.default_rng([seed, n, k])
        subsets = [rng.choice(n, k, replace=False).tolist() for _ in range(EXACT_SUBSETS)]
    return math.fsum(_vote([answers[i] for i in subset], score) for subset in subsets) / len(subsets)


def _vote(answers: list[str | None], score: dict[str, float]) -> float:
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return math.fsum(score[answer] for answer in winners) / len(winners)


def bootstrap(values_B: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean over problems and its 95% interval, problems resampled with replacement.

    The percentile interval, its distances from the mean stretched by √(B/(B−1)), for a resample's variance is that much
    too small, and kept within the values that there are. Samples within a problem are not resampled: the interval is of
    the mean over such problems as these.

    Args:
        values_B: a value for each problem.
        resamples: how many.
        seed: of the resampling.

    Raises:
        ValueError: no problem, or a value that is no finite number.
    """
    x_B = np.asarray(values_B, dtype=np.float64)
    if not len(x_B):
        raise ValueError("bootstrap: no problem has a value")
    if not np.isfinite(x_B).all():
        raise ValueError("bootstrap: a value is missing, NaN or infinite; leave its problem out")
    mean = float(x_B.mean())
    means = _resampled_means(x_B, resamples, seed)
    stretch = math.sqrt(len(x_B) / max(1, len(x_B) - 1))
    low, high = mean + stretch * (np.percentile(means, [2.5, 97.5]) - mean)
    return Interval(mean, max(float(low), float(x_B.min())), min(float(high), float(x_B.max())), len(x_B))


def _resampled_means(x_B: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of resamples; in blocks, so that memory stays small for long suites."""
    rng = np.random.default_rng(seed)
    block = max(1, 4_000_000 // len(x_B))
    parts = []
    for start in range(0, resamples, block):
        picks = rng.integers(len(x_B), size=(min(block, resamples - start), len(x_B)))
        parts.append(x_B[picks].mean(axis=1))
    return np.concatenate(parts)


def paired_difference(first: dict[str, float], second: dict[str, float], seed: int = 0) -> Interval:
    """Mean of second − first over the problems that both have, with its interval: pairing takes out their difficulty.

    Raises:
        ValueError: no problem in common.
    """
    both = [key for key in first if key in second]
    if not both:
        raise ValueError("paired difference: the two evaluations have no problem in common")
    return bootstrap([second[key] - first[key] for key in both], seed=seed)
