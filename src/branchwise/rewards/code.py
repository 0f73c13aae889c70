"""The built-in reward for programs: HumanEval's and MBPP's tests, and tasks of standard input and output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import Any

from branchwise.errors import ConfigError
from branchwise.rewards.programs import completions as completed
from branchwise.rewards.programs import programs
from branchwise.rewards.response import answer_texts, content_text, is_text
from branchwise.rewards.sandbox.limits import Limits
from branchwise.rewards.sandbox.run import LATE, Sandbox, open_sandbox
from branchwise.rewards.unit_tests import BadTests, Suite, humaneval, mbpp, runnable

COLUMNS = ("prompt", "test", "entry_point", "test_list", "test_setup_code", "test_imports", "inputs", "outputs")
KINDS = "`test` and `entry_point` (HumanEval), `test_list` (MBPP), or `inputs` and `outputs`"
CREDITS = ("all", "fraction")


class Ungradable(ValueError):
    """A row that no submission can be judged by: its reward is missing."""


@dataclass(frozen=True)
class Grading:
    """How programs are run and judged.

    Raises:
        ConfigError: a value that cannot be.
    """

    credit: str = "all"
    """`all`: every test has to pass; `fraction`: the share that does."""
    isolation: str = "bubblewrap"
    """`bubblewrap`, `container`, `sandbox_fusion`, or `unsafe`."""
    workers: int | None = None
    """Programs at a time; default: one for each CPU."""
    tolerance: float = 0.0
    """Numbers that a script prints may differ by so much, absolutely or relatively."""
    seconds: float = Limits.seconds
    memory_mb: int = Limits.memory_mb
    processes: int = Limits.processes
    output_mb: int = Limits.output_mb
    disk_mb: int = Limits.disk_mb
    """Limits of one program."""
    container_image: str = "python:3.11-slim"
    container_runtime: str | None = None
    """Default: podman or docker, whichever is there."""
    server_url: str | None = None
    """The SandboxFusion server's."""

    def __post_init__(self) -> None:
        if self.credit not in CREDITS:
            raise ConfigError(f"credit: {self.credit!r} is not possible; choose one of {', '.join(CREDITS)}")
        for name in ("seconds", "memory_mb", "processes", "output_mb", "disk_mb"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not possible; it has to be more than 0")

    @property
    def limits(self) -> Limits:
        return Limits(self.seconds, self.memory_mb, self.processes, self.output_mb, self.disk_mb)

    def sandbox(self) -> Sandbox:
        return open_sandbox(self.isolation, self.container_image, self.container_runtime, self.server_url)


SETTINGS = tuple(field.name for field in fields(Grading))


def code(
    completions: list[Any],
    answers: list[str] | None = None,
    prompts: list[Any] | None = None,
    log_extra: Any = None,
    **columns: Any,
) -> list[float | BaseException]:
    """1 for a program that passes its tests, else 0 (or the share of the tests that pass), each in its own sandbox.

    A row has the columns `test`, `entry_point` and `prompt` (HumanEval's), or `test_list` with `test_setup_code` or
    `test_imports` where there are any (MBPP's), or the lists `inputs` and `outputs`: a script is run on each input, and
    what it prints is compared here, line by line, without blanks at their ends.

    Args:
        completions, answers: responses; of Branchwise's the texts after the marker are read.
        prompts: instead of a column `prompt`.
        columns: the data's, and any setting of `Grading`.

    Returns:
        A number for each response; an exception that says why where the row's tests cannot be run.

    Raises:
        ConfigError: the isolation is not to be had here.
    """
    settings = {name: columns[name] for name in SETTINGS if name in columns}
    given = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    if prompts is not None:
        given.setdefault("prompt", prompts)
    outputs = answer_texts(completions, answers)
    rows = [{"output": text, **{name: values[i] for name, values in given.items()}} for i, text in enumerate(outputs)]
    graded = grade_code(rows, **settings)
    if log_extra:
        log_extra("code", [reason for _, reason in graded])
    return [Ungradable(reason) if reward is None else reward for reward, reason in graded]


def grade_code(rows: Sequence[Mapping[str, Any]], **settings: Any) -> list[tuple[float | None, str]]:
    """(Reward, reason) of rows with `output` and the columns of `code`; None where a row's tests cannot be run.

    Args:
        settings: `Grading`'s.

    Raises:
        ConfigError: the isolation is not to be had here.
    """
    return list(grade_in_turn(rows, **settings))


def grade_in_turn(rows: Sequence[Mapping[str, Any]], **settings: Any) -> Iterator[tuple[float | None, str]]:
    """What `grade_code` gives, each row's as soon as it and those before it are graded; programs not begun by then are
    left out where nobody takes the rest."""
    how = Grading(**settings)
    sandbox = how.sandbox()

    def grade(row: Mapping[str, Any]) -> tuple[float | None, str]:
        try:
            return _grade(row, sandbox, how)
        except (Ungradable, BadTests) as error:
            return None, str(error)
        except Exception as error:  # of this row: the others have theirs
            return None, f"{type(error).__name__}: {error}"

    if len(rows) == 1:
        yield grade(rows[0])
        return
    with ThreadPoolExecutor(how.workers or os.cpu_count() or 1) as pool:
        yield from pool.map(grade, rows)


def check(**settings: Any) -> None:
    """Whether programs can be run here with these settings; called before a run.

    Raises:
        ConfigError: they cannot.
    """
    if unknown := sorted(settings.keys() - set(SETTINGS)):
        raise ConfigError(f"rewards: 'code' takes no {unknown[0]!r}; it takes {', '.join(SETTINGS)}")
    Grading(**settings).sandbox()


def _grade(row: Mapping[str, Any], sandbox: Sandbox, how: Grading) -> tuple[float, str]:
    if row.get("output") is None:
        raise Ungradable("no output")
    if not is_text(row["output"]):
        raise Ungradable("the output is neither a text nor messages")
    for name in ("test_list", "inputs", "outputs"):
        if isinstance(row.get(name), str | bytes | Mapping):
            raise Ungradable(f"{name} is a {type(row[name]).__name__}; a list is expected")
    text = answer_texts([row["output"]], None)[0]
    if row.get("test") is not None and row.get("entry_point") is not None:
        prompt, name = _code_of(row.get("prompt"), row["entry_point"]), row["entry_point"]
        suite = humaneval(prompt, row["test"], name, how.credit == "fraction")
        return _tested(completed(text, prompt, name), suite, sandbox, how)
    if row.get("test_list") is not None:
        suite = mbpp(row["test_list"], row.get("test_setup_code"), row.get("test_imports"))
        tested = suite.job(stop=True)["remote"]
        sources = programs(text, tested[0] if len(tested) == 1 else None)
        return _tested(sources, suite, sandbox, how)
    if row.get("inputs") is not None and row.get("outputs") is not None:
        return _printed(programs(text), row["inputs"], row["outputs"], sandbox, how)
    raise Ungradable(f"no tests; a row has {KINDS}")


def _tested(sources: list[str], suite: Suite, sandbox: Sandbox, how: Grading) -> tuple[float, str]:
    job = suite.job(stop=how.credit == "all")
    if not sources:
        return 0.0, "no code in the output"
    result = sandbox.run_tests(sources, job, how.limits)
    if not result.possible:
        raise Ungradable(result.reason)
    total = max(suite.total, len(result.passed))  # a `check` that is called twice records twice
    return _credit(sum(result.passed), total, how.credit, result.reason)


def _printed(
    sources: list[str], inputs: Sequence[Any], outputs: Sequence[Any], sandbox: Sandbox, how: Grading
) -> tuple[float, str]:
    if len(inputs) != len(outputs) or not len(inputs):
        raise Ungradable(f"{len(inputs)} inputs and {len(outputs)} outputs; give as many of both, one or more")
    if not sources:
        return 0.0, "no code in the output"
    passed, failure = 0, ""
    for number, (stdin, expected) in enumerate(zip(map(_lines, inputs), map(_lines, outputs)), 1):
        result = sandbox.run_program(sources, stdin, how.limits)
        # where nothing is to be printed, only an end without an error shows that the program ran at all
        failed = result.reason or (result.failed and not result.output.strip())
        if not failed and same_text(result.output, expected, how.tolerance):
            passed += 1
            continue
        failure = failure or f"input {number}: {result.reason or result.error or 'another output'}"
        if how.credit == "all" or result.reason == LATE:
            break  # the others would take as long
    return _credit(passed, len(inputs), how.credit, failure)


def _credit(passed: int, total: int, credit: str, failure: str) -> tuple[float, str]:
    if passed == total:
        return 1.0, f"{total} of {total} tests pass" if total > 1 else "the tests pass"
    failure = failure or f"{passed} of {total} tests pass"
    return (passed / total if credit == "fraction" else 0.0), failure


def same_text(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Whether two outputs agree line by line, blanks at the ends of lines and empty lines at the end aside.

    With a tolerance, numbers in the same place may differ by so much, absolutely or relatively.
    """
    left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (printed, expected))
    if left == right or not tolerance:
        return left == right
    pairs = [(a.split(), b.split()) for a, b in zip(left, right)]
    return len(left) == len(right) and all(
        len(a) == len(b) and all(_close(x, y, tolerance) for x, y in zip(a, b)) for a, b in pairs
    )


def _close(a: str, b: str, tolerance: float) -> bool:
    if a == b:
        return True
    if not re.fullmatch(r"[-+]?[\d.]{1,400}(e[-+]?\d{1,3})?", a, re.IGNORECASE):
        return False
    try:
        x, y = Decimal(a), Decimal(b)
    except InvalidOperation:
        return False
    return y.is_finite() and abs(x - y) <= Decimal(str(tolerance)) * max(Decimal(1), abs(y))


def _lines(value: Any) -> str:
    """An input or output as text; some data sets keep its lines as a list."""
    return "\n".join(map(str, value)) + "\n" if isinstance(value, list | tuple) else str(value)


def _code_of(prompt: Any, name: str) -> str:
    """The prompt's code: of messages that of the last one; where it is prose, the block that has the function."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    text = content_text(last.get("content") if isinstance(last, dict) else last)
    if re.match(rf"(?s)\s*(?:from|import|def|class|@|#|\"\"\").*def\s+{re.escape(name)}\b", text):
        return text
    found = [code for code in programs(text, name) if re.search(rf"def\s+{re.escape(name)}\b", code)]
    return next(filter(runnable, found), "")
