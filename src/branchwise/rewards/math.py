"""The built-in reward for mathematics: 1 for the right final answer, 0 for any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchwise.rewards.mathematics.equality import equal
from branchwise.rewards.mathematics.extraction import final_answer, reference_text
from branchwise.rewards.response import answer_texts


def math(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    require_box: bool = False,
    **_: Any,
) -> list[float | None]:
    """1 where the final answer of a response, its thought left aside, equals the reference, else 0.

    `mathematics.extraction` says what the final answer is, and `mathematics.equality` what equals what. None where the
    reference is empty.

    Args:
        completions: responses, as texts or as messages; read where there are no `answers`.
        answer: reference answers; numbers, or texts in LaTeX or plain notation, or worked solutions.
        answers: texts after the marker, '' for unclosed thoughts.
        require_box: only a `\\boxed{}` counts.
    """
    found = answer_texts(completions, answers)
    return [explain(text, reference, require_box)[0] for text, reference in zip(found, answer)]


def explain(text: str, reference: Any, require_box: bool = False) -> tuple[float | None, str]:
    """The reward of one text without its thought, and the reason for it."""
    gold = reference_text(reference)
    if not gold:
        return None, "the reference is empty"
    given = final_answer(text, require_box)
    if given is None:
        return 0.0, "no box" if require_box else "no final answer"
    verdict = "equals" if equal(gold, given) else "does not equal"
    return float(verdict == "equals"), f"{_short(given)} {verdict} {_short(gold)}"


def ungradable(references: Sequence[Any]) -> list[tuple[int, str]]:
    """The places of the references that do not even answer themselves, and why."""
    found = []
    for place, reference in enumerate(references):
        reward, reason = explain(f"\\boxed{{{reference_text(reference)}}}", reference)
        if reward != 1:
            found.append((place, reason))
    return found


math.ungradable = ungradable  # type: ignore[attr-defined]  # whoever loads data asks for it by this name


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
