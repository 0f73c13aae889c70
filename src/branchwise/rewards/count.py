"""The built-in reward for counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchwise.rewards.mathematics.evaluation import constant, within_limit
from branchwise.rewards.mathematics.extraction import final_answer, reference_text
from branchwise.rewards.mathematics.notation import normalise
from branchwise.rewards.mathematics.quantity import read_quantity
from branchwise.rewards.response import answer_texts


def count(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    partial: bool = False,
    **_: Any,
) -> list[float | None]:
    """1 for the right whole number, else 0; None where the reference is none. Other arguments as for `math`.

    Args:
        partial: pay 1 − |n − reference| / reference instead, at least 0.
    """
    rewards: list[float | None] = []
    for text, reference in zip(answer_texts(completions, answers), answer):
        gold, given = _whole(reference_text(reference)), _whole(final_answer(text) or "")
        if gold is None or gold < 0:
            rewards.append(None)
        elif given is None or not partial:
            rewards.append(float(given == gold))
        else:
            rewards.append(max(0.0, 1 - abs(given - gold) / max(gold, 1)))
    return rewards


def _whole(text: str) -> int | None:
    quantity = read_quantity(normalise(text)) if len(text) <= 100 else None
    with within_limit():
        value = constant(quantity.node) if quantity and not quantity.percent else None
    return int(value) if value is not None and getattr(value, "denominator", 0) == 1 else None
