"""What became of a table's rows: how many are of use, and why the others are not."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from branchwise.data.load import DataError
from branchwise.tree import Question

SHOWN = 20
"""Rows that a report lists one by one; of the others it gives counts by reason."""


@dataclass(slots=True)
class Report:
    """What became of the rows: nothing is left out uncounted."""

    name: str
    rows: int = 0
    usable: int = 0
    unit: str = "row"
    """What numbers count: rows, or a file's lines."""
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Number of the row, and why it is not used."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Of the questions' rows, by the questions' ids."""
    rephrasings: int = 0
    """Rephrasings that joined their questions."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Rephrasings left out, by reason."""
    repeated_ids: str | None = None
    """Which rows share an id, for one; questions then go by their rows' numbers."""

    @property
    def lost(self) -> float:
        """Share of the rows that cannot be used."""
        return (self.rows - self.usable) / self.rows if self.rows else 0.0

    def reject(self, question: Question, reason: str) -> None:
        """Count a question that was usable so far as one that is not."""
        self.usable -= 1
        self.rejected.append((self.numbers.get(question.id, 0), reason))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.usable} of {self.rows} rows usable"]
        lines += [f"  {self.unit} {number}: {reason}" for number, reason in sorted(self.rejected)[:SHOWN]]
        if len(self.rejected) > SHOWN:
            lines.append(f"  and {len(self.rejected) - SHOWN} more; in all:")
            counts = Counter(re.sub(r"\d+", "…", reason) for _, reason in self.rejected)
            lines += [f"    {count} × {reason}" for reason, count in counts.most_common(SHOWN)]
        if self.repeated_ids:
            lines.append(f"  {self.repeated_ids}: ids are not unique, so questions go by the numbers of their rows")
        if self.rephrasings or self.left_out:
            reasons = [f"{count} {reason}" for reason, count in self.left_out.items()]
            lines.append(f"  {self.rephrasings} usable rephrasings; left out: {', '.join(reasons) or 'none'}")
        return "\n".join(lines)


def check_lost(report: Report, most: float) -> None:
    """Refuse data of which more than this share of the rows cannot be used.

    Raises:
        DataError: too many rows are lost; it holds the report.
    """
    if report.lost > most:
        lost = len(report.rejected)
        enough = math.ceil(1e4 * report.lost) / 1e4
        raise DataError(
            f"data.max_dropped: {most:g} of the rows may be left out, but {lost} of {report.rows} "
            f"({report.lost:.2%}) cannot be used; mend them, or set data.max_dropped: {enough:g} to go on with the "
            f"{report.usable} others. {report}"
        )
