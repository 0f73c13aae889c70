"""What `branchwise eval` does: models × suites, one after another, then their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from branchwise.config import ConfigError, Source
from branchwise.data.load import Rows, load_rows
from branchwise.diagnostics.responses import Embed, diversity, embedder
from branchwise.evaluate.contamination import Asked, Contamination, asked, contamination
from branchwise.evaluate.evaluate import LoadedEngine, Say, evaluate
from branchwise.evaluate.scores import by_problem, score
from branchwise.evaluate.settings import (
    EvaluationSettings,
    checkpoints_of,
    run_of,
    settings_for,
    weights_of,
    with_kv_memory,
)
from branchwise.evaluate.statistics import paired_difference
from branchwise.evaluate.store import Problem, read_seconds
from branchwise.evaluate.suites import Suite, find_suite
from branchwise.evaluate.tables import Outcome, markdown, write


def run_eval(
    models: Sequence[str],
    suites: Sequence[str],
    out: Path | None,
    options: dict[str, Any],
    *,
    checkpoints: bool = False,
    train_data: str | None = None,
    diversity_model: str | None = None,
    say: Say = print,
) -> str:
    """Evaluate every model (or every checkpoint of a run) on every suite; write and return the tables.

    Args:
        models: runs, folders of weights, or hub ids; differences are from the first.
        suites: as `find_suite` takes them; none: the held-out data of the first model's run.
        out: for results and samples; default: `evals` in the first model's run, else `evals/`.
        options: of `EvaluationSettings` and `DataConfig`, None where not given.
        checkpoints: evaluate each saved model of the one run named.
        train_data: whose questions the suites are checked against; default: the run's own.
        diversity_model: a sentence-transformers model.
        say: shows a line of progress.

    Raises:
        ConfigError: a model, a suite or a setting cannot be.
    """
    named = _models(models, checkpoints)
    run = run_of(next(iter(named.values()))[0])
    found = [(spec, find_suite(spec)) for spec in suites] or [_held_out(run)]
    trained_on = load_rows(Source(path=train_data)) if train_data else None
    out = out or (run / "evals" if run else Path("evals"))
    embed = embedder(diversity_model) if diversity_model else None
    outcomes: list[Outcome] = []
    firsts: dict[str, list[Problem]] = {}
    for name, (weights, step) in named.items():
        engine = None
        for spec, suite in found:
            folder = out / _slug(name) / suite.name
            settings = with_kv_memory(settings_for(weights, suite, spec, options), folder)
            engine = engine or LoadedEngine(settings.config())
            problems = evaluate(settings, suite, folder, engine, say)
            outcome = Outcome(settings, name, suite.name, score(problems, settings.k, settings.correct_at), step)
            outcome.seconds = read_seconds(folder)
            outcome.contamination = _contamination(problems, trained_on, run_of(weights), settings.data.image_column)
            outcome.difference = _difference(firsts.setdefault(suite.name, problems), problems, settings)
            outcome.extra = _diversity(problems, embed)
            outcomes.append(outcome)
            write(outcomes, out)
    return markdown(outcomes)


def _diversity(problems: list[Problem], embed: Embed | None) -> dict[str, float]:
    """Of responses in meaning, where it was asked for and there are two to compare."""
    if embed is None:
        return {}
    value = diversity([[sample.text for sample in problem.samples] for problem in problems], embed)
    return {} if value is None else {"diversity": value}


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, … up to n."""
    return [2**i for i in range(n.bit_length())]


def _models(models: Sequence[str], checkpoints: bool) -> dict[str, tuple[Path | str, int | None]]:
    """Weights and step by the name that tables give them."""
    if not checkpoints:
        names = [_name(model) for model in models]
        if len(set(names)) < len(names):
            names = [str(model) for model in models]
        return {name: (weights_of(model), None) for name, model in zip(names, models)}
    if len(models) != 1 or not (Path(models[0]) / "config.yaml").is_file():
        raise ConfigError("--checkpoints: name one run, a folder with config.yaml")
    return {f"step {step}": (path, step) for step, path in sorted(checkpoints_of(Path(models[0])).items())}


def _name(model: str) -> str:
    path = Path(model)
    return path.name if path.is_dir() else model


def _slug(name: str) -> str:
    return name.replace("/", "--").replace(" ", "-").strip(".-") or "model"


def _held_out(run: Path | None) -> tuple[str, Suite]:
    """The held-out data that the run itself was evaluated on."""
    if run is None:
        raise ConfigError(
            "--suite: name what to evaluate on, such as gsm8k; a model without a run has no held-out data"
        )
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if not config["data"]["eval"]:
        raise ConfigError(f"--suite: name what to evaluate on; {run}/config.yaml has no data.eval")
    source = Source.model_validate(config["data"]["eval"])
    return source.path, Suite("held-out", source)


def _contamination(
    problems: list[Problem], table: Rows | None, run: Path | None, image_column: str | None
) -> Contamination | None:
    """Against the named training data's rows, else the run's own where it can still be read."""
    if table is None and run is not None:
        data = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["data"]
        source, image_column = data["train"], data["image_column"]
        if source is None or not Path(source["path"]).is_file():
            return None
        table = load_rows(Source.model_validate(source))
    if table is None:
        return None
    found = {p.id: Asked(p.question, frozenset(p.images)) for p in problems}
    return contamination(found, asked(table.rows, table.folder, image_column))


def _difference(first: list[Problem], second: list[Problem], settings: EvaluationSettings) -> dict[str, Any]:
    """Paired differences in avg@n and each pass@k; nothing for the first model itself."""
    if first is second:
        return {}
    differences = {}
    for k in (None, *settings.k):
        before, after = (by_problem(problems, k, settings.correct_at) for problems in (first, second))
        if before.keys() & after.keys():
            differences[f"pass@{k}" if k else f"avg@{settings.samples}"] = paired_difference(before, after)
    return differences
