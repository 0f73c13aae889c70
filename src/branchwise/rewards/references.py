"""Whether a grader can tell each reference of the data at all, asked once before training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from branchwise.rewards.adapt import RewardFunction
from branchwise.tree import Question


def reference_notes(functions: Iterable[RewardFunction], questions: Sequence[Question], key: str) -> list[str]:
    """A line for each grader that cannot grade some references, with their rows.

    A grader is asked if it has an attribute `ungradable`: from references to the places and reasons of those that
    would not even be paid for themselves.

    Args:
        functions: the run's reward functions.
        questions: with the reference in the column `answer`.
        key: what the data is called in the config.
    """
    references = [(question.id, question.columns["answer"]) for question in questions if "answer" in question.columns]
    notes = []
    for function in functions:
        ask = getattr(function.function, "ungradable", None)
        found = ask([reference for _, reference in references]) if ask and references else []
        if found:
            rows = "; ".join(f"row {references[place][0]}: {reason}" for place, reason in found[:20])
            more = f"; and {len(found) - 20} more" if len(found) > 20 else ""
            notes.append(
                f"warning: {key}: {function.name!r} cannot grade {len(found)} of {len(references)} references, "
                f"and pays nothing for them: {rows}{more}"
            )
    return notes
