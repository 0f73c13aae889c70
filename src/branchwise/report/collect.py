"""From a run's folder to what its page shows: series, findings, evaluations, distributions, and an index of trees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from branchwise.diagnostics.diagnose import diagnose
from branchwise.diagnostics.history import History, read_history

UNIFORM, UNCLOSED, PHRASINGS_DISAGREE, ANSWERS_SPLIT, FAILED, TRUNCATED = (1 << i for i in range(6))
"""Flags of a tree, by which the page filters."""
SAME = 1e-9
DROPPED = ("ids", "logprob")
"""Fields of a node that the page has no use for."""
SNIPPET = 90


@dataclass(slots=True)
class RunData:
    """One run, ready to be embedded."""

    data: dict[str, Any]
    """Everything but the trees."""
    index: list[list[Any]]
    """For each tree: file, line, step, id, flags, mean reward, leaves, beginning of its wording."""
    chunks: dict[str, str] = field(default_factory=dict)
    """Trees by file, as JSON."""


def collect_run(folder: str | Path, tree_bytes: int | None) -> RunData:
    """Read a run.

    Args:
        folder: of the run.
        tree_bytes: trees of evenly spaced steps up to so many bytes of JSON; None: all.

    Raises:
        ConfigError: the folder is no run's.
    """
    history = read_history(folder)
    files = _tree_files(history)
    kept = _spaced(files, tree_bytes)
    run = RunData(_data(history), [])
    rewards: list[float] = []
    advantages: list[float] = []
    for file in kept:
        trees = []
        for line, tree in enumerate(read_records(file)):
            trees.append(_slim(tree))
            run.index.append([file.stem, line, *summarise(tree)])
            if not file.stem.startswith("held-out"):
                rewards += [node["reward"] for node in leaves(tree) if node["reward"] is not None]
                advantages += [node["advantage"] for node in tree["nodes"] if node.get("advantage") is not None]
        run.chunks[file.stem] = json.dumps(trees, ensure_ascii=False, separators=(",", ":"))
    run.data["distributions"] = {"reward": histogram(rewards), "advantage": histogram(advantages)}
    run.data["tree_files"] = {"shown": len(kept), "all": len(files)}
    return run


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """The trees of a file; a last line that is still being written is left out."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line, parse_constant=_nothing)


def leaves(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in tree["nodes"] if "reward" in node]


def summarise(tree: dict[str, Any]) -> list[Any]:
    """Step, id, flags, mean reward, number of leaves, and the beginning of the original wording."""
    nodes = tree["nodes"]
    ends = leaves(tree)
    rewards = [node["reward"] for node in ends if node["reward"] is not None]
    below: dict[int, list[float]] = {}
    by_phrasing: dict[int, list[float]] = {}
    for node in ends:
        if node["reward"] is None:
            continue
        below.setdefault(node["parent"], []).append(node["reward"])
        root = node["parent"]
        while nodes[root]["parent"] >= 0:
            root = nodes[root]["parent"]
        by_phrasing.setdefault(root, []).append(node["reward"])
    means = [float(np.mean(r)) for r in by_phrasing.values()]
    flags = (
        UNIFORM * (len(rewards) > 1 and max(rewards) - min(rewards) <= SAME)
        | UNCLOSED * any(n["kind"] == "thought" and n["finish"] in ("stop", "length") for n in nodes)
        | PHRASINGS_DISAGREE * (len(means) > 1 and max(means) - min(means) > 0.25)
        | ANSWERS_SPLIT * any(nodes[p]["kind"] == "thought" and max(r) - min(r) > SAME for p, r in below.items())
        | FAILED * (len(rewards) < len(ends))
        | TRUNCATED * any(n["kind"] != "thought" and n["finish"] == "length" for n in nodes)
    )
    mean = round(float(np.mean(rewards)), 3) if rewards else None
    return [tree["step"], tree["question"]["id"], flags, mean, len(ends), wording(nodes[0])[:SNIPPET]]


def wording(phrasing: dict[str, Any]) -> str:
    """A phrasing's own words; logs of earlier versions have the whole prompt alone."""
    return phrasing.get("wording") or phrasing["text"][-200:]


def histogram(values: list[float], bins: int = 31) -> dict[str, list[float]] | None:
    """Counts between equally spaced edges; None of no values."""
    if not values:
        return None
    low, high = min(values), max(values)
    if high - low < SAME:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(values, bins=bins, range=(low, high))
    return {"counts": counts.tolist(), "edges": [round(float(e), 6) for e in edges]}


def _data(history: History) -> dict[str, Any]:
    keys = sorted({key for step in history.steps for key, value in step.items() if isinstance(value, int | float)})
    series = {key: [_short(step.get(key)) for step in history.steps] for key in keys if key != "step"}
    return {
        "name": history.path.resolve().name,
        "config": _finite(history.config),
        "summary": _finite(history.summary),
        "steps": [step["step"] for step in history.steps],
        "series": series,
        "held_out": [
            [h["step"], *(_short(h[f"held_out/{name}"]) for name in ("mean", "low", "high"))] for h in history.held_out
        ],
        "findings": [asdict(finding) for finding in diagnose(history)],
        "evals": _evals(history.path),
    }


def _evals(run: Path) -> list[dict[str, Any]]:
    """pass@k of every evaluation of the run: suite, model, step, and [k, mean, low, high]."""
    file = run / "evals" / "results.json"
    if not file.is_file():
        return []
    evals = []
    for record in json.loads(file.read_text(encoding="utf-8"), parse_constant=_nothing):
        passes = [[int(k), p["mean"], p["low"], p["high"]] for k, p in record["scores"]["passes"].items() if p]
        extra = record["scores"]["shares"] | record["extra"]
        evals.append({**{key: record[key] for key in ("suite", "model", "step")}, "passes": passes, "shares": extra})
    return evals


def _tree_files(history: History) -> list[Path]:
    """Files of trees, those of an earlier and longer run in the same folder left out."""
    last = max([h["step"] for h in (*history.steps, *history.held_out)], default=0)
    files = sorted((history.path / "trees").glob("*.jsonl"))
    return [file for file in files if int(re.findall(r"\d+", file.stem)[-1]) <= last]


def _spaced(files: list[Path], most: int | None) -> list[Path]:
    """All files, or so many evenly spaced ones, first and last among them, as `most` bytes hold."""
    total = sum(file.stat().st_size for file in files)
    if most is None or total <= most or len(files) < 3:
        return files
    count = max(2, int(len(files) * most / total))
    picks = sorted({round(i * (len(files) - 1) / (count - 1)) for i in range(count)})
    return [files[i] for i in picks]


def _slim(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "nodes": [{k: v for k, v in node.items() if k not in DROPPED} for node in tree["nodes"]]}


def _short(value: Any) -> float | None:
    """Six significant digits; the page has no use for more."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def _nothing(constant: str) -> None:
    """For NaN and Infinity, which Python writes but JSON, and so the page, has no words for."""


def _finite(value: Any) -> Any:
    """The same with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
