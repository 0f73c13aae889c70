"""What `branchwise eval` does: models × suites, one after another, then their tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from branchwise.config import ConfigError, ModelConfig, Source
from branchwise.data.load import FILES, GYM, Rows, load_rows
from branchwise.diagnostics.responses import Embed, diversity, embedder
from branchwise.evaluate.contamination import Asked, Contamination, asked, contamination
from branchwise.evaluate.evaluate import LoadedEngine, Say, evaluate
from branchwise.evaluate.scores import by_problem, score
from branchwise.evaluate.settings import (
    EvaluationSettings,
    checkpoints_of,
    digest_of,
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
    found = _suites(suites) or [_held_out(run)]
    given = load_rows(Source(path=train_data)) if train_data else None
    out = out or (run / "evals" if run else Path("evals"))
    embed = embedder(diversity_model) if diversity_model else None
    outcomes: list[Outcome] = []
    firsts: dict[str, list[Problem]] = {}
    for name, (weights, step) in named.items():
        its = options | {"weights": digest_of(weights)}
        trained_on = _trained_on(run_of(weights)) if given is None else given
        with closing(LoadedEngine(ModelConfig(path=str(weights)))) as engine:
            for spec, suite in found:
                folder = out / _slug(name) / _slug(suite.name)
                settings = with_kv_memory(settings_for(weights, suite, spec, its), folder, engine.kv_memory_gb)
                problems = evaluate(settings, suite, folder, engine, say)
                outcome = Outcome(settings, name, suite.name, score(problems, settings.k, settings.correct_at), step)
                outcome.seconds = read_seconds(folder)
                outcome.contamination = _contamination(problems, trained_on, settings.data.image_column)
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


def _suites(specs: Sequence[str]) -> list[tuple[str, Suite]]:
    """Each suite with how it was named.

    Raises:
        ConfigError: there is none of that name, or two would lie in one folder.
    """
    found = [(spec, find_suite(spec)) for spec in dict.fromkeys(specs)]
    names = [_slug(suite.name) for _, suite in found]
    for spec, suite in found:
        if names.count(_slug(suite.name)) > 1:
            raise ConfigError(f"--suite: {spec}: another is named {suite.name!r}, too; write OTHER_NAME=FILE")
    return found


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


def _trained_on(run: Path | None) -> Rows | str | None:
    """The rows that a run was trained on, or why they are not at hand; None: no run."""
    if run is None:
        return None
    source = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["data"]["train"]
    path = source["path"] if source else "what a program gave"
    if not source or (not path.startswith(GYM) and not path.endswith(FILES)):
        return f"not checked, for the run was trained on {path}; name that with --train-data"
    try:
        return load_rows(Source.model_validate(source))
    except ConfigError as error:
        return f"not checked, for the run's training data are not at hand ({error}); name them with --train-data"


def _contamination(
    problems: list[Problem], trained_on: Rows | str | None, image_column: str | None
) -> Contamination | str | None:
    if trained_on is None or isinstance(trained_on, str):
        return trained_on
    found = {p.id: Asked(p.question, frozenset(p.images)) for p in problems}
    return contamination(found, asked(trained_on.rows, trained_on.folder, image_column))


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
