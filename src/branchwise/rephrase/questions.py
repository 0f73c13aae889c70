"""What of a table's rows is rephrased."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from branchwise.data.load import DataError, Rows
from branchwise.data.questions import QUESTIONS, list_of_texts, question_text, with_answer

LONGEST = 20_000
"""Characters of a question: longer ones fit no prompt, and checks that compare texts would take minutes."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question to rephrase."""

    row: int
    """Number of its row, from 1."""
    id: str
    question: str
    answer: Any
    """The reference answer; None where there is none."""
    given: tuple[str, ...] = ()
    """Rephrasings that the row brings."""


def items(table: Rows) -> tuple[list[Item], list[tuple[int, str]]]:
    """The questions of a table, and the rows that have none to rephrase (number from 1, reason).

    Raises:
        DataError: no row, or no column that holds questions.
    """
    columns = table.columns
    key = next((name for name in QUESTIONS if name in columns), None)
    if key is None:
        found = f"the columns found are {', '.join(columns)}" if columns else "it has no rows"
        raise DataError(f"{table.name}: no column {' or '.join(QUESTIONS)}; {found}")
    found_items, without = [], []
    for number, row in enumerate(table.rows, start=1):
        text = question_text(row.get(key)).strip()
        if not text or len(text) > LONGEST:
            reason = f"its question has {len(text):,} characters, more than {LONGEST:,}; it stays as it is"
            without.append((number, reason if text else "its question is missing or empty"))
            continue
        answer = with_answer(row).get("answer")
        given = _given(row, f"{table.name}, row {number}")
        found_items.append(Item(number, str(number if row.get("id") is None else row["id"]), text, answer, given))
    return found_items, without


def _given(row: Mapping[str, Any], place: str) -> tuple[str, ...]:
    if row.get("rephrasings") is None:
        return ()
    return tuple(text for text in list_of_texts(row["rephrasings"], place) if text and text.strip())
