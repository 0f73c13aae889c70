"""From stored samples to scores: pass@k, avg@n, maj@k with intervals, and what answers look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from branchwise.diagnostics.responses import disagreement
from branchwise.evaluate.statistics import Interval, bootstrap, majority_at_k, pass_at_k
from branchwise.evaluate.store import Problem, Sample


@dataclass(frozen=True, slots=True)
class Scores:
    """One model on one suite."""

    problems: int
    samples: int
    """Asked of each problem."""
    missing: int
    """Samples without a reward; they count nowhere, and n is so much smaller for their problems."""
    average: Interval | None
    """avg@n: the share of right samples, mean over problems."""
    passes: dict[int, Interval | None]
    """pass@k by k; None where no problem has k samples."""
    majority: dict[int, Interval | None]
    """maj@k by k; None where no sample has a final answer, too (programs)."""
    notes: list[str] = field(default_factory=list)
    """What a reader has to know of these numbers."""
    shares: dict[str, float] = field(default_factory=dict)
    """Truncated, unclosed and unanswered samples; uniform problems; disagreement of final answers; tokens."""

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("passes", "majority"):
            values[name] = {str(k): value for k, value in values[name].items()}
        return values


def score(problems: list[Problem], ks: Sequence[int], correct_at: float = 1.0) -> Scores:
    """Scores of the problems' samples.

    Args:
        problems: with their samples.
        ks: the k of pass@k and maj@k.
        correct_at: a sample is right where its reward is at least this.
    """
    counted = [[s for s in problem.samples if s.reward is not None] for problem in problems]
    right = [[float(s.reward or 0) >= correct_at - 1e-9 for s in samples] for samples in counted]
    asked = max((len(problem.samples) for problem in problems), default=0)
    notes: list[str] = []
    average = _over([float(np.mean(r)) if r else None for r in right])
    passes = {k: _noted(f"pass@{k}", [pass_at_k(len(r), sum(r), k) for r in right], k, notes) for k in ks}
    majority: dict[int, Interval | None] = {}
    if any(s.answer is not None for samples in counted for s in samples):
        votes = [([s.answer for s in samples], r) for samples, r in zip(counted, right)]
        majority = {k: _over([majority_at_k(answers, r, k) for answers, r in votes]) for k in ks}
    missing = sum(s.reward is None for problem in problems for s in problem.samples)
    if missing:
        reasons = Counter(s.reason for problem in problems for s in problem.samples if s.reward is None)
        notes.append(f"{missing} samples have no reward: " + "; ".join(f"{n} × {r}" for r, n in reasons.most_common(3)))
    if average is not None and average.low == average.high and average.n > 1:
        notes.append("every problem has the same score: resampling problems cannot tell how sure that is")
    return Scores(len(problems), asked, missing, average, passes, majority, notes, _shares(problems, right))


def by_problem(problems: list[Problem], k: int | None, correct_at: float = 1.0) -> dict[str, float]:
    """Each problem's pass@k (None: avg@n) by its id, where it has one."""
    values = {}
    for problem in problems:
        right = [s.reward >= correct_at - 1e-9 for s in problem.samples if s.reward is not None]
        value = pass_at_k(len(right), sum(right), k) if k else float(np.mean(right)) if right else None
        if value is not None:
            values[problem.id] = value
    return values


def _over(values: list[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return bootstrap(known) if known else None


def _noted(name: str, values: list[float | None], k: int, notes: list[str]) -> Interval | None:
    if left_out := sum(value is None for value in values):
        which = "no problem has" if left_out == len(values) else f"{left_out} of {len(values)} problems lack"
        notes.append(f"{name} is undefined where a problem has fewer than {k} samples: {which} so many")
    return _over(values)


def _shares(problems: list[Problem], right: list[list[bool]]) -> dict[str, float]:
    samples: list[Sample] = [s for problem in problems for s in problem.samples]
    if not samples:
        return {}
    shares = {
        "truncated": float(np.mean([s.finish == "length" and not s.unclosed for s in samples])),
        "unclosed": float(np.mean([s.unclosed for s in samples])),
        "unanswered": float(np.mean([s.answer is None for s in samples])),
        "tokens": float(np.mean([s.tokens for s in samples])),
    }
    uniform = [sum(r) in (0, len(r)) for r in right if len(r) > 1]
    if uniform:
        shares["uniform"] = float(np.mean(uniform))
    apart = [disagreement([s.answer for s in problem.samples]) for problem in problems]
    known = [value for value in apart if value is not None]
    if known:
        shares["answers_disagree"] = float(np.mean(known))
    return shares
