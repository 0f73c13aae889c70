"""Evaluation: pass@k and its kin, suites, contamination, and what checkpoints did on fixed questions."""

from branchwise.evaluate.statistics import (
    Interval,
    bootstrap,
    majority_at_k,
    paired_difference,
    pass_at_k,
)

__all__ = ["Interval", "bootstrap", "majority_at_k", "paired_difference", "pass_at_k"]
