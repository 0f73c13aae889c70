"""Checks on rephrasings that are there already."""

from __future__ import annotations

from typing import Any

from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import DataError, Rows
from branchwise.rephrase.checks import Candidate, rejection
from branchwise.rephrase.questions import items
from branchwise.rephrase.work import Tally, check_names


def review(table: Rows, config: RephraseConfig) -> tuple[Tally, list[dict[str, Any]]]:
    """Judge every rephrasing of a table, in order; the checks that need no model.

    Returns:
        Counts, and for each rephrasing: row (from 1), id, rephrasing, accepted, reason (None where it is accepted).

    Raises:
        ConfigError: there is nothing to check, or a check is named that is not there.
    """
    check_names(config.skip_checks)
    if "rephrasings" not in table.columns:
        raise DataError(f"{table.name}: no column rephrasings; the columns found are {', '.join(table.columns)}")
    tally, judgements = Tally(), []
    for item in items(table)[0]:
        accepted: list[str] = []
        for text in item.given:
            candidate = Candidate(item.question, text, item.answer, accepted)
            reason = rejection(candidate, config.skip_checks)
            judgement = {"row": item.row, "id": item.id, "rephrasing": text, "accepted": reason is None}
            judgements.append({**judgement, "reason": reason})
            if reason is None:
                accepted = [*accepted, text]
                tally.accepted += 1
            else:
                tally.rejected[reason.partition(":")[0]] += 1
        tally.done += 1
    return tally, judgements
