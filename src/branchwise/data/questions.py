"""From rows to questions: which columns mean what, which rows are usable, and how a row becomes a prompt."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from branchwise.config import DataConfig, Source
from branchwise.data.images import ImageError, Limits
from branchwise.data.load import DataError, Rows, load_rows
from branchwise.data.placing import placed, resized, row_pictures
from branchwise.data.prompt import PromptError, Renderer
from branchwise.data.report import Report, check_lost
from branchwise.errors import nearest
from branchwise.tree import Prompt, Question

QUESTIONS = ("prompt", "question", "problem")
ANSWERS = ("answer", "solution", "ground_truth")


def load_questions(
    source: Rows | Source | Iterable[Mapping[str, Any]], data: DataConfig, renderer: Renderer, rephrasings: int = 0
) -> tuple[list[Question], Report]:
    """Read a table and make questions of it whose prompts fit; see `load_rows`, `questions` and `fitting`.

    Raises:
        DataError: the data cannot be used, or more of it is lost than `data.max_dropped`.
    """
    found, report = questions(load_rows(source), data, rephrasings)
    fit = fitting(found, renderer, report)
    check_lost(report, data.max_dropped)
    return fit, report


def questions(table: Rows, data: DataConfig, rephrasings: int = 0) -> tuple[list[Question], Report]:
    """Turn rows into questions.

    The question is the column `prompt` (text or messages), `question` or `problem`, whichever comes first. Text becomes
    the user's message through `data.template`, after the system prompt and the worked examples (these stand as they are
    written). Only a text `prompt` without either stays plain text, as in TRL: no chat template is put around it. In a
    `prompt` of messages the template and the rephrasings replace the last user message's text, and `data.system_prompt`
    the system message.

    The reference is `answer`, `solution`, `ground_truth` or verl's `reward_model.ground_truth`, and becomes the column
    `answer`. Where it is a worked solution that ends in `#### 72` (GSM8K), or a `solution` with a `\\boxed{}` (MATH),
    `answer` is the final answer alone and the column `solution` keeps the whole. Every other column passes through.

    Args:
        table: what `load_rows` read.
        data: system prompt, examples, template.
        rephrasings: N, at most so many of each row's `rephrasings` are used; empty ones and repetitions never.

    Raises:
        DataError: no question column, an unknown column in the template, no rephrasings though N > 0, or no usable row.
    """
    report = Report(table.name, rows=len(table.rows) + len(table.unreadable), unit=table.unit)
    report.rejected += table.unreadable.items()
    if not report.rows:
        raise DataError(f"{table.name}: no rows")
    if not table.rows:
        raise DataError(f"no usable row. {report}")
    key, columns = _question_column(table, data, rephrasings), table.columns
    answered = any(_reference(row) is not None for row in table.rows)
    template = Template(data.template, [*columns, "answer"] if answered else columns, table.name)
    found = {}
    for number, raw in table.numbered():
        row = with_answer(raw)
        text = question_text(row.get(key))
        reason = _unusable(row, key, text, answered, template)
        try:
            if reason is None:
                more = _wordings(row, text, rephrasings, report, f"{table.name}, {table.unit} {number}")
                made = _made(row, key, chain([text], more), template, data, table.folder, report)
                found[number] = replace(made, id=str(number if row.get("id") is None else row["id"]))
        except ImageError as error:
            reason = str(error)
        if reason is not None:
            report.rejected.append((number, reason))
    if not found:
        raise DataError(f"no usable row. {report}")
    report.usable = len(found)
    questions = list(found.values())
    if repeated := [id for id, count in Counter(question.id for question in found.values()).items() if count > 1]:
        rows = [str(number) for number, question in found.items() if question.id == repeated[0]]
        some = f"{table.unit}s {', '.join(rows[:5])}{', …' if len(rows) > 5 else ''}"
        report.repeated_ids = f"{some} have the id {repeated[0]!r}"
        questions = [replace(question, id=str(number)) for number, question in found.items()]
    report.numbers = {question.id: number for number, question in zip(found, questions)}
    return questions, report


def _question_column(table: Rows, data: DataConfig, rephrasings: int) -> str:
    """The column that holds the questions.

    Raises:
        DataError: it, or another that is needed, is missing.
    """
    columns = table.columns
    key = next((name for name in QUESTIONS if name in columns), None)
    known = f"the columns found are {', '.join(columns)}"
    if key is None:
        raise DataError(f"{table.name}: no column {' or '.join(QUESTIONS)}; {known}{nearest(QUESTIONS, columns)}")
    if rephrasings and "rephrasings" not in columns:
        raise DataError(
            f"{table.name}: tree.rephrasings is {rephrasings}, but there is no column rephrasings; "
            f"{known}{nearest('rephrasings', columns)}. Add it, or set tree.rephrasings: 0"
        )
    if data.image_column not in (None, *columns):
        raise DataError(f"data.image_column: {data.image_column!r} is no column of {table.name}; {known}")
    return key


def _made(
    row: dict[str, Any],
    key: str,
    wordings: Iterable[str],
    template: Template,
    data: DataConfig,
    folder: Path,
    report: Report,
) -> Question:
    """A row's question, with its images, without an id.

    Raises:
        ImageError: an image cannot be used, or the original has other places for images than images.
    """
    shown = row_pictures(
        row, row[key], folder, Limits(data.min_pixels, data.max_pixels, data.image_urls), data.image_column
    )
    prompts = [build_prompt(row, key, wording, template, data) for wording in wordings]
    prompts = list(_with_images(prompts, len(shown), report))
    return Question("", tuple(prompts), resized(row, shown, data.boxes) if shown else row, shown)


def fitting(found: list[Question], renderer: Renderer, report: Report) -> list[Question]:
    """The questions whose original prompt is within the renderer's limit, with those of their phrasings that are.

    What is left out is counted in `report`.

    Raises:
        DataError: none fits.
    """
    fit = []
    for question in found:
        try:
            kept = renderer.fits(question)
        except PromptError as error:
            report.reject(question, str(error))
            continue
        if kept is None:
            report.reject(question, f"its prompt has more tokens than {renderer.limit}")
        else:
            if excess := len(question.phrasings) - len(kept.phrasings):
                report.left_out[f"of more tokens than {renderer.limit}"] += excess
            fit.append(kept)
    if not fit:
        raise DataError(f"no usable question. {report}")
    return fit


def _with_images(prompts: list[Prompt], count: int, report: Report) -> Iterator[Prompt]:
    """The phrasings with places for so many images; rephrasings that have others are left out.

    Raises:
        ImageError: the original has.
    """
    for n, prompt in enumerate(prompts):
        try:
            yield placed(prompt, count) if count else prompt
        except ImageError:
            if n == 0:
                raise
            report.rephrasings -= 1
            report.left_out["with fewer or more places for images than images"] += 1


def _reference(row: Mapping[str, Any]) -> Any:
    """The reference answer as it stands in the row; None where there is none."""
    reference = next((row[name] for name in ANSWERS if not _empty(row.get(name))), None)
    model = row.get("reward_model")
    if reference is None and isinstance(model, Mapping) and not _empty(model.get("ground_truth")):
        reference = model["ground_truth"]
    return reference


def with_answer(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its reference in the column `answer`, as the final answer where it is a worked solution."""
    reference = _reference(row)
    if reference is None:
        return row
    answer = _final_answer(reference, boxed=_empty(row.get("answer"))) if isinstance(reference, str) else reference
    if answer is not reference and _empty(row.get("solution")):
        row = {**row, "solution": reference}
    return {**row, "answer": answer}


def _final_answer(text: str, boxed: bool) -> str:
    from branchwise.rewards.mathematics.extraction import last_box

    if marked := re.search(r"^#### *(.+?)\s*\Z", text, re.MULTILINE):
        return marked[1]
    return (boxed and last_box(text)) or text


def _empty(value: Any) -> bool:
    """None, blank text, an empty list, or the not-a-number that tables write for nothing."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value == [] or (isinstance(value, float) and value != value)


def _unusable(row: Mapping[str, Any], key: str, text: str, answered: bool, template: Template) -> str | None:
    given = row.get(key)
    if not _empty(given) and not isinstance(given, str | list):
        return f"its question is no text: {given!r:.80}"
    if isinstance(given, list) and not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in given):
        return f"its messages are not all of a role and a content: {given!r:.80}"
    if not text.strip():
        return "its question is missing or empty"
    if answered and _empty(row.get("answer")):
        return "its answer is missing or empty"
    if absent := [column for column in template.columns - {"question"} if row.get(column) is None]:
        return f"data.template needs its column {absent[0]}, which is missing"
    return None


def _wordings(row: Mapping[str, Any], original: str, limit: int, report: Report, place: str) -> Iterator[str]:
    """The usable rephrasings of a row, at most `limit`."""
    if not limit or row.get("rephrasings") is None:
        return
    seen = {" ".join(original.split())}
    used = 0
    for wording in list_of_texts(row["rephrasings"], place):
        text = " ".join(wording.split()) if wording is not None else ""
        if not text:
            report.left_out["empty"] += 1
        elif text in seen:
            report.left_out["the same as the original or as another"] += 1
        elif used == limit:
            report.left_out["beyond tree.rephrasings"] += 1
        else:
            seen.add(text)
            used += 1
            report.rephrasings += 1
            yield str(wording)


def list_of_texts(value: Any, place: str) -> list[str | None]:
    if isinstance(value, str):  # a CSV cell
        try:
            value = json.loads(value) if value.strip() else []
        except json.JSONDecodeError:
            value = None
    if not isinstance(value, list) or not all(isinstance(text, str | None) for text in value):
        raise DataError(f"{place}: rephrasings is a list of texts (in a CSV cell, a JSON list)")
    return value


class Template:
    """The user's message around a question: `{column}` stands for that column, `{question}` for the question.

    `{{` and `}}` are braces. Other braces are left alone, and so is a LaTeX command's argument: `\\boxed{answer}`.

    Raises:
        DataError: a column that the data lacks.
    """

    _PARTS = re.compile(r"(?P<latex>\\[A-Za-z]+\{\w*\})|(?P<open>\{\{)|(?P<close>\}\})|\{(?P<column>[A-Za-z_]\w*)\}")

    def __init__(self, text: str, columns: list[str], name: str) -> None:
        self.text = text
        self.columns = {match["column"] for match in self._PARTS.finditer(text) if match["column"]}
        """What the text asks for."""
        if not self.columns:
            raise DataError(
                f"data.template: {text!r} has no place for the question; write {{question}} where it stands"
            )
        for column in sorted(self.columns - {*columns, "question"}):
            raise DataError(
                f"data.template: {{{column}}} is no column of {name}; the columns found are {', '.join(columns)}"
                f"{nearest(column, columns)} "
                f"(for braces as such write {{{{{column}}}}})"
            )

    def fill(self, row: Mapping[str, Any]) -> str:
        def part(match: re.Match[str]) -> str:
            if match["column"]:
                return str(row[match["column"]])
            return match["latex"] or ("{" if match["open"] else "}")

        return self._PARTS.sub(part, self.text)


def question_text(value: Any) -> str:
    """The text asked, '' where there is none: of messages, the last user message's."""
    if isinstance(value, list):
        asked = [message for message in value if isinstance(message, Mapping) and message.get("role") == "user"]
        value = asked[-1].get("content") if asked else None
        if isinstance(value, list):
            value = "\n".join(filter(None, map(_part_text, value)))
    return value if isinstance(value, str) else ""


def _part_text(part: Any) -> str | None:
    """The text of one part of a message's content, which some write as a bare string."""
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else None


def build_prompt(row: Mapping[str, Any], key: str, wording: str, template: Template, data: DataConfig) -> Prompt:
    """One phrasing as a prompt; `questions` says how.

    Args:
        row: all columns.
        key: the question's column.
        wording: the question's text, or a rephrasing of it.
    """
    text = template.fill({**row, key: wording, "question": wording})
    given = row[key]
    as_it_stands = text == question_text(given)
    if isinstance(given, str):
        if key == "prompt" and not data.system_prompt and not data.examples:
            return text
        messages = [{"role": "user", "content": text}]
    else:
        messages = _without_nulls(given) if as_it_stands and _interleaved(given) else _replace_text(given, text)
    system: list[dict[str, Any]] = []
    if messages[0]["role"] == "system":
        system, messages = messages[:1], messages[1:]
    if data.system_prompt:
        system = [{"role": "system", "content": data.system_prompt}]
    examples = []
    for example in data.examples:
        examples.append({"role": "user", "content": example["question"]})
        examples.append({"role": "assistant", "content": example["response"]})
    return [*system, *examples, *messages]


def _interleaved(messages: list[dict[str, Any]]) -> bool:
    """Whether the last user message has several texts, whose places among images matter."""
    content = [message["content"] for message in messages if message["role"] == "user"][-1]
    kinds = [_part_text(part) is None for part in content] if isinstance(content, list) else []
    return kinds.count(False) > 1 and any(kinds)


def _replace_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with `text` for the last user message's, and without the nulls that Arrow writes for absent keys."""
    messages = [_without_nulls(message) for message in messages]
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    content = messages[last]["content"]
    if isinstance(content, list):
        first, *others = [i for i, part in enumerate(content) if _part_text(part)]
        content[first] = {"type": "text", **(content[first] if isinstance(content[first], dict) else {}), "text": text}
        content = [part for i, part in enumerate(content) if i not in others]
    else:
        content = text
    messages[last] = {**messages[last], "content": content}
    return messages


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
