"""Named benchmarks: where their problems are, how they are asked, and what grades them.

A suite's rows come from the hub by its id, or from a local file with the same columns (`NAME=FILE`); either way
`prepare` brings them to the columns that graders read.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError, Source
from branchwise.data.load import GYM, Rows, load_rows

BOXED = "{question}\nReason step by step and put the final answer in \\boxed{{}}."
CHOICE = "{question}\n\n{options}\n\nReason step by step and put the letter of the right option in \\boxed{{}}."
COMPLETE = "Complete this Python function. Give the whole function in a Python code block.\n\n{question}"
WRITE = "{question}\nYour code has to pass these tests:\n\n{tests}\n\nGive it in a Python code block."

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark."""

    name: str
    source: Source
    """The hub's dataset, or a file."""
    reward: str = "math"
    template: str | None = None
    """The user's message; None: that of the model's run, else `BOXED`."""
    prepare: Callable[[Row], Row | None] = dict
    """A row with the columns `question` and `answer` (and what the grader reads); None leaves the row out."""


def _olympiad(row: Row) -> Row | None:
    """Some questions stand on a `context`, such as definitions; several right answers are one text."""
    answer = row.get("answer", row.get("final_answer"))
    key = "question" if "question" in row else "problem"
    asked = f"{row['context']}\n{row[key]}" if row.get("context") else row[key]
    return {**row, key: asked, "answer": answer[0] if isinstance(answer, list) and answer else answer}


def _choice(row: Row) -> Row:
    """MMLU's and the like: `choices` with a letter, or the place of the right one from 0, as `answer`."""
    choices, answer = row["choices"], row["answer"]
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"choices is a list of texts, not {choices!r:.80}")
    letter = answer if isinstance(answer, str) else string.ascii_uppercase[int(answer)]
    return {**row, "choices": choices, "answer": letter, "options": _options(choices)}


def _gpqa(row: Row) -> Row:
    """GPQA's columns; the right option's place is drawn from the question's text, so that it is the same everywhere."""
    import zlib

    if "choices" in row:
        return _choice(row)
    question, right = row["Question"].strip(), row["Correct Answer"].strip()
    choices = [row[f"Incorrect Answer {i}"].strip() for i in (1, 2, 3)]
    choices.insert(zlib.crc32(question.encode()) % 4, right)
    answer = string.ascii_uppercase[choices.index(right)]
    return {"question": question, "choices": choices, "answer": answer, "options": _options(choices)}


def _options(choices: list[str]) -> str:
    return "\n".join(f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices))


def _humaneval(row: Row) -> Row:
    """The prompt as a message: plain text would be continued without a chat template."""
    return {**row, "id": row["task_id"], "prompt": [{"role": "user", "content": row["prompt"]}]}


def _mbpp(row: Row) -> Row | None:
    """The 500 test problems (task ids 11 to 510), as published."""
    if not 11 <= int(row["task_id"]) <= 510:
        return None
    return {**row, "id": str(row["task_id"]), "question": row["text"], "tests": "\n".join(row["test_list"])}


STEM = (
    "abstract_algebra", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
    "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
    "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
    "high_school_mathematics", "high_school_physics", "high_school_statistics", "machine_learning",
)  # fmt: skip
"""Of MMLU's own four categories (arXiv 2009.03300) that of these 18; some harnesses count anatomy, too."""


def _stem(row: Row) -> Row | None:
    return _choice(row) if row.get("subject") in STEM else None


def _hub(path: str, split: str = "test", subset: str | None = None) -> Source:
    return Source(path=path, split=split, subset=subset)


SUITES = {
    suite.name: suite
    for suite in (
        Suite("gsm8k", _hub("openai/gsm8k", subset="main")),
        Suite("math", _hub("DigitalLearningGmbH/MATH-lighteval")),
        Suite("math500", _hub("HuggingFaceH4/MATH-500")),
        Suite("amc23", _hub("math-ai/amc23")),
        Suite("aime24", _hub("HuggingFaceH4/aime_2024", split="train")),
        Suite("aime25", _hub("math-ai/aime25")),
        Suite(
            "olympiadbench",
            _hub("Hothan/OlympiadBench", split="train", subset="OE_TO_maths_en_COMP"),
            prepare=_olympiad,
        ),
        Suite("minerva", _hub("math-ai/minervamath")),
        Suite("gpqa-diamond", _hub("Idavidrein/gpqa", split="train", subset="gpqa_diamond"), "choice", CHOICE, _gpqa),
        Suite("mmlu-stem", _hub("cais/mmlu", subset="all"), "choice", CHOICE, _stem),
        Suite("humaneval", _hub("openai/openai_humaneval"), "code", COMPLETE, _humaneval),
        Suite("mbpp", _hub("google-research-datasets/mbpp", subset="full"), "code", WRITE, _mbpp),
    )
}


def find_suite(spec: str) -> Suite:
    """The suite that `spec` names.

    `NAME` is one of `SUITES`; `NAME=FILE` takes its problems from a file; `reasoning_gym:TASK` generates them; a file
    by itself is a suite of the user's own, graded as mathematics.

    Raises:
        ConfigError: no such suite, and no such file.
    """
    if spec.startswith(GYM):
        return Suite(spec.removeprefix(GYM), Source(path=spec), "reasoning_gym")
    name, equals, file = spec.partition("=")
    if equals and name in SUITES:
        return replace(SUITES[name], source=Source(path=file))
    if name in SUITES:
        return SUITES[name]
    path = file or spec
    if Path(path).suffix.lower() in (".jsonl", ".json", ".csv", ".parquet"):
        return Suite(name if equals else Path(path).stem, Source(path=path))
    raise ConfigError(
        f"suite: there is no {spec!r}; choose one of {', '.join(SUITES)}, NAME=FILE, a .jsonl, .json, .csv or .parquet "
        "file, or reasoning_gym:TASK"
    )


def suite_rows(suite: Suite, limit: int | None) -> Rows:
    """The suite's rows as graders read them, at most `limit`: the first ones.

    Raises:
        ConfigError: the rows lack a column that the suite needs, or none belongs to it.
    """
    generated = suite.source.path.startswith(GYM)
    table = load_rows(suite.source.model_copy(update={"limit": limit}) if generated else suite.source)
    rows: list[Row] = []
    numbers: list[int] = []
    for number, row in table.numbered():
        try:
            prepared = suite.prepare(row)
        except KeyError as error:
            raise ConfigError(
                f"suite {suite.name}: {table.unit} {number} of {table.name} has no column {error}; "
                f"it has {', '.join(row)}"
            ) from None
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"suite {suite.name}: {table.unit} {number} of {table.name} is not as the benchmark has it: {error}"
            ) from None
        if prepared is not None:
            rows.append(prepared)
            numbers.append(number)
        if len(rows) == limit:
            break
    if table.rows and not rows:
        raise ConfigError(f"suite {suite.name}: none of the {len(table.rows)} rows of {table.name} belongs to it")
    return replace(table, rows=rows, numbers=numbers)
