"""A run's record, read back."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from branchwise.errors import ConfigError


@dataclass(slots=True)
class History:
    """What a run's folder says."""

    path: Path
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    """Metrics of each training step, in order."""
    held_out: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    """None while a run goes on, or where it was cut short."""
    garbled: int = 0
    """Lines of metrics.jsonl that cannot be read, as a crash of the machine leaves them."""

    def values(self, key: str) -> np.ndarray:
        """A metric over the steps that have it; values that are not finite are left out, see `not_finite`."""
        values = np.array([step[key] for step in self.steps if step.get(key) is not None], dtype=np.float64)
        return values[np.isfinite(values)]

    def not_finite(self) -> dict[str, int]:
        """In how many steps each metric is NaN or infinite; those that never are do not appear."""
        found: Counter[str] = Counter()
        for record in (*self.steps, *self.held_out):
            found.update(k for k, value in record.items() if isinstance(value, float) and not math.isfinite(value))
        return dict(found)

    def mean(self, key: str, last: int | None = None) -> float | None:
        """Mean of a metric, over the last so many steps that have it; None where none has."""
        values = self.values(key)
        values = values[-last:] if last else values
        return float(values.mean()) if len(values) else None


def read_history(run: str | Path) -> History:
    """Read a run's folder. A last line that is still being written is left out, and so are garbled ones.

    Raises:
        ConfigError: the folder is no run's.
    """
    path = Path(run)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise ConfigError(f"{path}: no run: {name} is missing; name the output_dir of a run")
    config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    text = (path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    read = [_record(line) for line in text.split("\n")[: text.count("\n")] if line.strip()]
    records = [record for record in read if record is not None]
    steps: dict[int, dict[str, Any]] = {}
    held_out: dict[int, dict[str, Any]] = {}
    for record in records:
        if "held_out/mean" in record:
            held_out[record["step"]] = record
        else:
            steps[record["step"]] = steps.get(record["step"], {}) | record
    summary = path / "summary.json"
    return History(
        path,
        config,
        [steps[step] for step in sorted(steps)],
        [held_out[step] for step in sorted(held_out)],
        json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else None,
        garbled=len(read) - len(records),
    )


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "step" in record else None
