"""`branchwise rephrase`. Heavy imports wait until it is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from branchwise.config_rephrase import RephraseConfig
    from branchwise.data.load import Rows

FAILED = 1
EPILOG = (
    "Examples:  `branchwise rephrase math.jsonl --out math_rephrased.jsonl -n 3 --writer openai:gpt-4-turbo --dry-run`"
    "  ·  `branchwise rephrase math.jsonl --out m.jsonl --writer openai:my-model --base-url http://localhost:8000/v1`"
    "  ·  `branchwise rephrase --check m.jsonl`"
)


def rephrase(
    data: Annotated[
        str | None, typer.Argument(help="JSONL, JSON, CSV, Parquet, a hub id, reasoning_gym:TASK.", metavar="[DATA]")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where to: .jsonl or .parquet.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, max=1000, help="Rephrasings of each question.")] = 3,
    writer: Annotated[str, typer.Option(help="openai:MODEL, local:MODEL or rules.")] = "rules",
    base_url: Annotated[str | None, typer.Option(help="Endpoint of openai: writers; default: OpenAI's.")] = None,
    kinds: Annotated[str | None, typer.Option(help="Of wording, format, order, variables; in turn.")] = None,
    prompts: Annotated[str | None, typer.Option(help="A folder with prompts of your own.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one reply.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="Tries until one passes the checks.")] = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", help="A check to leave out; may be repeated.")] = None,
    judge: Annotated[str | None, typer.Option(help="A model that says whether both ask the same.")] = None,
    solver: Annotated[str | None, typer.Option(help="A model that must answer both about as well.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Of one request.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one request.")] = None,
    max_wait: Annotated[float | None, typer.Option(help="Longest Retry-After that is waited for, in seconds.")] = None,
    budget_requests: Annotated[int | None, typer.Option(help="Stop before more requests.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens.")] = None,
    budget_cost: Annotated[float | None, typer.Option(help="Stop after so much money.")] = None,
    price_in: Annotated[float | None, typer.Option(help="Per million prompt tokens.")] = None,
    price_out: Annotated[float | None, typer.Option(help="Per million reply tokens.")] = None,
    split: Annotated[str, typer.Option(help="Of a hub dataset.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="The first rows alone.")] = None,
    show: Annotated[int, typer.Option(min=0, help="Questions to print with their rephrasings.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell tokens and cost; send nothing.")] = False,
    check: Annotated[Path | None, typer.Option("--check", help="Check the rephrasings in this file.")] = None,
) -> None:
    """Write rephrasings of questions, or check those that are there.

    The output keeps every column and adds `rephrasings`; records, rejections and the store of replies lie beside it.
    Run the same command again after an interruption: nothing is asked twice.

    Exit codes: 0 done, 1 stopped early (the work is kept) or nothing was written, 2 an option or the data cannot be.
    """
    given = {
        "writer": writer, "base_url": base_url, "kinds": kinds.split(",") if kinds else None, "prompts": prompts,
        "temperature": temperature, "max_tokens": max_tokens, "seed": seed, "attempts": attempts, "skip_checks": skip,
        "judge": judge, "solver": solver, "concurrency": concurrency, "retries": retries, "timeout": timeout,
        "max_wait": max_wait, "budget_requests": budget_requests, "budget_tokens": budget_tokens,
        "budget_cost": budget_cost, "price_in": price_in, "price_out": price_out,
    }  # fmt: skip
    config = _config(given)
    if check is not None:
        _check(_load(str(check), split, limit), config)
    elif data is None:
        raise typer.BadParameter("name the DATA, or a file to --check")
    elif dry_run:
        from branchwise.rephrase.estimate import estimate

        for line in estimate(_load(data, split, limit), n, config):
            typer.echo(line)
    elif out is None:
        raise typer.BadParameter("--out is missing: where the data goes with its rephrasings")
    else:
        _write(_load(data, split, limit), out, n, config, show)


def _config(given: dict[str, Any]) -> RephraseConfig:
    from pydantic import ValidationError

    from branchwise.config_rephrase import RephraseConfig
    from branchwise.errors import ConfigError

    try:
        return RephraseConfig.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        told = (f"rephrase.{'.'.join(map(str, e['loc']))}: {e['input']!r}: {e['msg']}" for e in error.errors())
        raise ConfigError("\n".join(told)) from None


def _load(data: str, split: str, limit: int | None) -> Rows:
    from branchwise.config import Source
    from branchwise.data.load import load_rows

    return load_rows(Source(path=data, split=split, limit=limit)).intact()


def _write(table: Rows, out: Path, n: int, config: RephraseConfig, show: int) -> None:
    from branchwise.rephrase import display, files, run

    paths = files.Paths(files.check_out(out, table.name))
    files.check_rows(out, table)
    if "variables" in config.kinds:
        typer.echo("note: with renamed variables train with algorithm.anchor: behaviour; `original` scores a response "
                   "after the original's letters")  # fmt: skip
    with display.Display(len(table.rows)) as shown:
        result = run.rephrase(table, n, config, paths.store, progress=shown.update)
    for line in (*display.report(result, n), *display.samples(result, show)):
        typer.echo(line)
    if result.stopped:
        typer.echo(
            f"stopped: {result.stopped}\nevery reply that came is kept in {paths.store}; the same command goes on from "
            f"there. {out} is not written yet",
            err=True,
        )
        raise typer.Exit(FAILED)
    files.write_data(out, table, result.outcomes)
    files.write_records(paths, result.outcomes)
    typer.echo(f"written: {out}, {paths.records.name}, {paths.rejected.name}")
    if not result.tally.accepted:
        typer.echo("no rephrasing passed the checks", err=True)
        raise typer.Exit(FAILED)


def _check(table: Rows, config: RephraseConfig) -> None:
    """Each rephrasing as a line of JSON with `accepted` and `reason`, the table of reasons on stderr."""
    import json

    from branchwise.rephrase import display
    from branchwise.rephrase.review import review

    tally, judgements = review(table, config)
    for judgement in judgements:
        typer.echo(json.dumps(judgement, ensure_ascii=False))
    typer.echo("\n".join(display.rejections(tally)), err=True)
