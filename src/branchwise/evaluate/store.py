"""Every sample of an evaluation on disk, a problem a line, so that a killed evaluation goes on where it was."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError

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

    Raises:
        ConfigError: the folder holds an evaluation with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.file = folder / "samples.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        stated = folder / "settings.json"
        settings = json.loads(json.dumps(settings))
        if stated.exists():
            _check_same(json.loads(stated.read_text(encoding="utf-8")), settings, folder)
        stated.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, batch: int, total: int) -> list[Problem]:
        """The problems that are done, whole batches alone: a batch is sampled together or not at all.

        Lines after the last whole batch, and one that was cut short, are taken off the file; of `total` problems the
        last batch may be smaller.
        """
        if not self.file.exists():
            return []
        lines = self.file.read_bytes().split(b"\n")[:-1]
        if len(lines) < total:
            lines = lines[: len(lines) - len(lines) % batch]
        self.file.write_bytes(b"".join(line + b"\n" for line in lines))
        return [_problem(json.loads(line)) for line in lines]

    def append(self, problems: list[Problem], seconds: float) -> None:
        """Write problems, and add the time they took to that of all tries."""
        total = seconds + read_seconds(self.folder)
        (self.folder / "seconds.json").write_text(json.dumps(round(total, 2)) + "\n", encoding="utf-8")
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(problem), ensure_ascii=False, default=str) + "\n" for problem in problems)


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
