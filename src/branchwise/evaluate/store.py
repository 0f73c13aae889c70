"""Every sample of an evaluation on disk, a problem a line, so that a killed evaluation goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError
from branchwise.train.run_directory import locked

SCORING = {"k", "correct_at"}
"""Settings that only the stored samples' scores depend on: another k needs no new samples."""


@dataclass(slots=True)
class Sample:
    """One response."""

    text: str
    answer: str | None
    """The final answer in one form, as votes are counted; None where there is none, or for programs."""
    reward: float | None
    parts: dict[str, float | None] = field(default_factory=dict)
    reason: str | None = None
    """Why the reward is missing."""
    tokens: int = 0
    finish: str | None = None
    unclosed: bool = False


@dataclass(slots=True)
class Problem:
    """One problem with its samples."""

    id: str
    question: str
    reference: Any
    samples: list[Sample]
    images: list[str] = field(default_factory=list)
    """Digests of what it shows (`data.images.digest`)."""


class Store:
    """The files of one model on one suite: `settings.json`, and `samples.jsonl` in the order of the problems.

    Only one process works on a folder, until it closes the store.

    Raises:
        ConfigError: the folder cannot be written to, holds an evaluation with other settings, or another process is
            at work there.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.file = folder / "samples.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: {folder}: {error.strerror}; name another folder") from None
        self._lock = locked(folder, "--out")
        stated = folder / "settings.json"
        settings = json.loads(json.dumps(settings))
        if stated.exists() and self.file.exists() and self.file.stat().st_size:
            _check_same(json.loads(stated.read_text(encoding="utf-8")), settings, folder)
        replace_text(stated, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Let other processes work on the folder."""
        self._lock.close()

    def load(self, batch: int, asked: Sequence[tuple[str, str]]) -> list[Problem]:
        """The problems that are done, whole batches alone: a batch is sampled together or not at all.

        Lines after the last whole batch, and one that was cut short, are cut off the file; the last batch of all may
        be smaller.

        Args:
            batch: problems that are sampled together.
            asked: id and question of every problem of the suite, in order.

        Raises:
            ConfigError: a line cannot be read, or is of another problem: the suite's data have changed.
        """
        if not self.file.exists():
            return []
        lines = self.file.read_bytes().split(b"\n")[:-1]
        if len(lines) < len(asked):
            lines = lines[: len(lines) - len(lines) % batch]
        done = []
        for number, line in enumerate(lines, start=1):
            try:
                done.append(_problem(json.loads(line)))
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{self.file}, line {number}: not a stored problem; remove the folder") from None
        if (stored := [(p.id, p.question) for p in done]) != list(asked[: len(done)]):
            other = next((s[0] for s, a in zip(stored, asked) if s != a), stored[-1][0])
            raise ConfigError(
                f"{self.folder}: holds samples of other problems than the suite has now (the first is {other!r}): its "
                "data have changed; remove the folder, or name another with --out"
            )
        os.truncate(self.file, sum(len(line) + 1 for line in lines))
        return done

    def append(self, problems: list[Problem], seconds: float) -> None:
        """Write problems, and add the time they took to that of all tries."""
        total = seconds + read_seconds(self.folder)
        replace_text(self.folder / "seconds.json", json.dumps(round(total, 2)) + "\n")
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(problem), ensure_ascii=False, default=str) + "\n" for problem in problems)


def replace_text(file: Path, text: str) -> None:
    """Write a file at once: whoever ends this process leaves the old one or the new one."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def read_seconds(folder: Path) -> float:
    """What the stored samples took to draw and grade, over all tries."""
    file = folder / "seconds.json"
    return float(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else 0.0


def read_problems(folder: Path) -> list[Problem]:
    """Every stored problem of an evaluation."""
    with (folder / "samples.jsonl").open(encoding="utf-8", newline="\n") as file:
        return [_problem(json.loads(line)) for line in file]


def _problem(record: dict[str, Any]) -> Problem:
    samples = [Sample(**sample) for sample in record["samples"]]
    return Problem(record["id"], record["question"], record["reference"], samples, record.get("images", []))


def _check_same(stored: dict[str, Any], settings: dict[str, Any], folder: Path) -> None:
    for key in settings.keys() - SCORING:
        if stored.get(key) != settings[key]:
            raise ConfigError(
                f"{folder}: holds an evaluation with {key}: {json.dumps(stored.get(key))}, not "
                f"{json.dumps(settings[key])}; remove the folder, or name another with --out"
            )
