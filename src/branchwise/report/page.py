"""The page: everything in one HTML file. Trees are compressed piece by piece, and unpacked when they are looked at."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from branchwise.report.collect import RunData, collect_run

HERE = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "assets/page.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "vendor/temml.min.js",
    "assets/data.js",
    "assets/charts.js",
    "assets/text.js",
    "assets/trees.js",
    "assets/explorer.js",
    "assets/app.js",
)
TREE_BYTES = 200_000_000
"""Of JSON, all runs together: a quarter of it or less once compressed."""


def write_report(runs: Sequence[str | Path], out: Path, tree_bytes: int | None = TREE_BYTES) -> Path:
    """Write the report of one run, or of several laid over each other.

    Args:
        runs: their folders.
        out: the HTML file.
        tree_bytes: the most JSON of trees; above it, trees of evenly spaced steps. None: all.

    Raises:
        ConfigError: a folder is no run's.
    """
    share = None if tree_bytes is None else tree_bytes // len(runs)
    collected = [collect_run(run, share) for run in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(payload(collected), chunks(collected)), encoding="utf-8")
    return out


def payload(runs: Sequence[RunData], live: bool = False) -> dict[str, Any]:
    """What the page's script starts from."""
    names: list[str] = []
    for run in runs:  # runs of one name are told apart
        name = run.data["name"]
        run.data["name"] = name if name not in names else f"{name} ({len(names) + 1})"
        names.append(run.data["name"])
    return {"live": live, "runs": [run.data for run in runs]}


def chunks(runs: Sequence[RunData]) -> dict[str, str]:
    """Compressed pieces by the id under which the page finds them."""
    pieces = {}
    for r, run in enumerate(runs):
        pieces[f"index-{r}"] = pack(json.dumps(run.index, ensure_ascii=False, separators=(",", ":")))
        pieces |= {f"trees-{r}-{name}": pack(text) for name, text in run.chunks.items()}
    return pieces


def pack(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")


def page(data: dict[str, Any], pieces: dict[str, str]) -> str:
    """The whole HTML."""
    # "<" only ever stands in strings there, and "</script>" or "<!--" would end the element
    embedded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False).replace(
        "<", "\\u003c"
    )
    parts = {
        "STYLE": "\n".join(_read(name) for name in STYLES),
        "SCRIPT": "\n".join(f"// {name}\n{_read(name)}" for name in SCRIPTS),
        "DATA": embedded,
        "PIECES": "\n".join(f'<script type="text/plain" id="{key}">{text}</script>' for key, text in pieces.items()),
        "TITLE": " · ".join(run["name"] for run in data["runs"]).replace("<", ""),
    }
    text = _read("assets/page.html")
    for key, value in parts.items():
        text = text.replace(f"<!--{key}-->", value, 1)
    return text


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
