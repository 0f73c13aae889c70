"""Grading a file of outputs, row by row: what `branchwise grade` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TextIO

from branchwise.data.load import DataError
from branchwise.rewards.response import after_thought, texts

Task = Literal["math", "code", "choice", "format", "box"]
Row = dict[str, Any]
Verdict = tuple[float | None, str]
"""A reward, None where a row cannot be graded, and the reason."""

BATCH = 256
"""Rows that are read, graded and written at a time."""


def grade(lines: Iterable[str], task: Task) -> Iterator[str]:
    """JSON rows with `reward` and `reason` added, in the order in which they came, a line each.

    Rows have `output` (a text, or messages) and `answer`; for `code` HumanEval's `prompt`, `test` and `entry_point`,
    MBPP's `test_list`, or lists `inputs` and `outputs`; for `choice` also `choices`; for `format` nothing else. For
    `box` they may have `width`, `height`, `coordinates` and `output_coordinates`.

    Raises:
        DataError: a line is no JSON object.
    """
    batch: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            batch.append(_row(line, number))
        if len(batch) == BATCH:
            yield from _graded(batch, task)
            batch = []
    yield from _graded(batch, task)


def grade_file(source: TextIO, task: Task, target: TextIO) -> dict[str, float]:
    """Grade a stream into another; the number of rows, of ungradable ones, and the mean reward of the others."""
    rows, graded, total = 0, 0, 0.0
    for line in grade(source, task):
        target.write(line + "\n")
        reward = json.loads(line)["reward"]
        rows += 1
        if reward is not None:
            graded += 1
            total += reward
    target.flush()
    return {"rows": rows, "ungraded": rows - graded, "mean": total / graded if graded else 0.0}


def _row(line: str, number: int) -> Row:
    try:
        row = json.loads(line.lstrip("\ufeff") if number == 1 else line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"line {number}: no JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"line {number}: a JSON object is expected, with the keys output and answer")
    return row


def _graded(rows: list[Row], task: Task) -> Iterator[str]:
    if task == "code":
        from branchwise.rewards.code import grade_code  # type: ignore[import-not-found]

        verdicts = grade_code(rows)
    else:
        verdicts = [_verdict(row, task) for row in rows]
    for row, (reward, reason) in zip(rows, verdicts):
        yield json.dumps({**row, "reward": reward, "reason": reason}, ensure_ascii=False)


def _verdict(row: Row, task: Task) -> Verdict:
    """Of one row; what fails here would fail on no other row, and is told as its reason."""
    output = row.get("output")
    if not isinstance(output, str | list):
        return None, "no output" if output is None else f"output is of type {type(output).__name__}, no text"
    if task != "format" and row.get("answer") is None:
        return None, "no answer"
    try:
        return _GRADERS[task](texts([output])[0], row)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _math(output: str, row: Mapping[str, Any]) -> Verdict:
    from branchwise.rewards.math import explain

    return explain(after_thought(output), row["answer"])


def _choice(output: str, row: Mapping[str, Any]) -> Verdict:
    from branchwise.rewards.choice import explain

    return explain(after_thought(output), row["answer"], row.get("choices"))


def _format(output: str, row: Mapping[str, Any]) -> Verdict:
    from branchwise.rewards.format import explain

    return explain(output)


def _box(output: str, row: Mapping[str, Any]) -> Verdict:
    from branchwise.rewards.box import explain, image_sizes

    size = image_sizes([row.get("width") or 0], [row.get("height") or 0], 1)[0]
    system = row.get("coordinates") or "pixels"
    return explain(after_thought(output), row["answer"], size, system, row.get("output_coordinates") or system)


_GRADERS: dict[str, Callable[[str, Mapping[str, Any]], Verdict]] = {
    "math": _math, "choice": _choice, "format": _format, "box": _box,
}  # fmt: skip
