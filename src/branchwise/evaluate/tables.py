"""An evaluation's numbers as JSON, a Markdown table, and CSV."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from branchwise.evaluate.contamination import Contamination
from branchwise.evaluate.scores import Scores
from branchwise.evaluate.settings import EvaluationSettings
from branchwise.evaluate.statistics import Interval
from branchwise.evaluate.store import replace_text


@dataclass(slots=True)
class Outcome:
    """One model on one suite, scored."""

    settings: EvaluationSettings
    name: str
    """What tables call the model."""
    suite: str
    scores: Scores
    step: int | None = None
    """Of a run's checkpoint."""
    contamination: Contamination | str | None = None
    """What was found, or why nothing was looked for; None: there is no training to speak of."""
    difference: dict[str, Interval] = field(default_factory=dict)
    """Paired differences from the first model, by score."""
    extra: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def write(outcomes: list[Outcome], folder: Path) -> None:
    """Write results.md and results.csv; in results.json earlier evaluations of other models and suites stay."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [_record(outcome) for outcome in outcomes]
    fresh = {(record["suite"], record["model"]) for record in records}
    records = [old for old in _earlier(folder) if (old["suite"], old["model"]) not in fresh] + records
    replace_text(folder / "results.json", json.dumps(records, indent=2, ensure_ascii=False) + "\n")
    replace_text(folder / "results.md", markdown(outcomes))
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["suite", "model", "step", "score", "k", "mean", "low", "high", "problems"])
        for outcome in outcomes:
            for score, k, interval in _cells(outcome):
                numbers = [interval.mean, interval.low, interval.high, interval.n] if interval else ["", "", "", 0]
                writer.writerow([outcome.suite, outcome.name, outcome.step, score, k, *numbers])


def _earlier(folder: Path) -> list[dict[str, Any]]:
    file = folder / "results.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def markdown(outcomes: list[Outcome]) -> str:
    """A table for each suite, differences, settings and notes."""
    lines: list[str] = []
    for suite in dict.fromkeys(outcome.suite for outcome in outcomes):
        here = [outcome for outcome in outcomes if outcome.suite == suite]
        ks = here[0].settings.k
        majority = any(outcome.scores.majority for outcome in here)
        head = ["model", f"avg@{here[0].scores.samples}", *(f"pass@{k}" for k in ks)]
        head += [f"maj@{k}" for k in ks if k > 2] if majority else []
        lines += [f"## {suite}", "", _line(head), _line(["---"] * len(head))]
        for outcome in here:
            s = outcome.scores
            cells = [outcome.name, _cell(s.average), *(_cell(s.passes.get(k)) for k in ks)]
            cells += [_cell(s.majority.get(k)) for k in ks if k > 2] if majority else []
            lines.append(_line(cells))
        lines.append("")
        for outcome in here:
            lines += _remarks(outcome)
        lines += ["", f"Settings: {_settings(here[0])}", ""]
    lines.append("Intervals are 95%, by bootstrap over problems.")
    return "\n".join(lines) + "\n"


def _remarks(outcome: Outcome) -> list[str]:
    lines = [f"- {outcome.name}: {note}" for note in outcome.scores.notes]
    for score, interval in outcome.difference.items():
        verdict = "" if interval.low <= 0 <= interval.high else " (0 is outside)"
        lines.append(f"- {outcome.name}, {score}, difference from the first model: {interval}{verdict}")
    if outcome.contamination:
        lines.append(f"- {outcome.name}, contamination: {outcome.contamination}")
    shares = outcome.scores.shares | outcome.extra
    told = ", ".join(f"{k.replace('_', ' ')} {v:.{1 if k == 'tokens' else 3}f}" for k, v in shares.items())
    lines.append(f"- {outcome.name}: {told}; {outcome.scores.problems} problems in {outcome.seconds:.0f} s")
    return lines


def _settings(outcome: Outcome) -> str:
    values = outcome.settings.model_dump()
    data = {key: value for key, value in values.pop("data").items() if key not in ("train", "eval", "shuffle")}
    rewards = [reward["function"] for reward in values.pop("rewards")]
    values = {key: value for key, value in values.items() if key not in ("model", "suite")}
    return json.dumps(values | {"rewards": rewards, **data}, ensure_ascii=False)


def _record(outcome: Outcome) -> dict[str, Any]:
    return {
        "suite": outcome.suite,
        "model": outcome.name,
        "step": outcome.step,
        "scores": outcome.scores.as_dict(),
        "difference": {score: asdict(interval) for score, interval in outcome.difference.items()},
        "contamination": asdict(c) if isinstance(c := outcome.contamination, Contamination) else c,
        "extra": outcome.extra,
        "seconds": round(outcome.seconds, 1),
        "settings": outcome.settings.model_dump(),
    }


def _cells(outcome: Outcome) -> list[tuple[str, int, Interval | None]]:
    s = outcome.scores
    cells: list[tuple[str, int, Interval | None]] = [("avg", s.samples, s.average)]
    cells += [("pass", k, interval) for k, interval in s.passes.items()]
    cells += [("maj", k, interval) for k, interval in s.majority.items()]
    return cells


def _cell(interval: Interval | None) -> str:
    return str(interval) if interval else "undefined"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
