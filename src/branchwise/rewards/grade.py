"""Grading a file of outputs, row by row: what `branchwise grade` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, TextIO

from branchwise.rewards.response import after_thought, is_text, texts

Task = Literal["math", "code", "choice", "format", "box"]
Row = dict[str, Any]
Verdict = tuple[float | None, str]
"""A reward, None where a row cannot be graded, and the reason."""

BATCH = 256
"""Rows that are read, graded and written at a time."""


def grade(lines: Iterable[str], task: Task) -> Iterator[Row]:
    """Rows with `reward` and `reason` added, in the order of their lines, one for each line that is not blank.

    Rows have `output` (a text, or messages) and `answer`; for `code` HumanEval's `prompt`, `test` and `entry_point`,
    MBPP's `test_list`, or lists `inputs` and `outputs`; for `choice` also `choices`; for `format` nothing else. For
    `box` they may have `width`, `height`, `coordinates` and `output_coordinates`, and the output may be JSON as it is.
    A line that is no JSON object becomes a row of its reason alone.
    """
    lines = (line for line in lines if line.strip())
    while batch := [_row(line) for line in islice(lines, BATCH)]:
        yield from _graded(batch, task)


def grade_file(source: Iterable[str], task: Task, target: TextIO) -> dict[str, float]:
    """Grade lines into a stream; the number of rows, of ungradable ones, and the mean reward of the others."""
    rows, graded, total = 0, 0, 0.0
    for row in grade(source, task):
        target.write(json.dumps(row) + "\n")
        rows += 1
        if row["reward"] is not None:
            graded += 1
            total += row["reward"]
    target.flush()
    return {"rows": rows, "ungraded": rows - graded, "mean": total / graded if graded else 0.0}


def _row(line: str) -> Row | str:
    """A row, or why there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return row if isinstance(row, dict) else "no JSON object with the keys output and answer"


def _graded(rows: list[Row | str], task: Task) -> Iterator[Row]:
    sound = [row for row in rows if isinstance(row, dict)]
    if task == "code":
        from branchwise.rewards.code import grade_in_turn

        verdicts = grade_in_turn(sound)  # what is graded is written, whatever ends the rest
    else:
        verdicts = (_verdict(row, task) for row in sound)
    for row in rows:
        reward, reason = next(verdicts) if isinstance(row, dict) else (None, row)
        yield {**(row if isinstance(row, dict) else {}), "reward": reward, "reason": reason}


def _verdict(row: Row, task: Task) -> Verdict:
    """Of one row; what fails here would fail on no other row, and is told as its reason."""
    output = row.get("output")
    if task == "box" and output is not None and not is_text(output):
        output = json.dumps(output)
    if output is None or not is_text(output):
        return None, "no output" if output is None else "the output is neither a text nor messages"
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
    system: Any = row.get("coordinates") or "pixels"
    return explain(after_thought(output), row["answer"], size, system, row.get("output_coordinates") or system)


_GRADERS: dict[str, Callable[[str, Mapping[str, Any]], Verdict]] = {
    "math": _math, "choice": _choice, "format": _format, "box": _box,
}  # fmt: skip
