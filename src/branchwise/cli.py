"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from branchwise.errors import ConfigError, WorkStopped
from branchwise.rephrase import command as rephrasing

app = typer.Typer(
    name="branchwise",
    help="Post-train reasoning models by group-relative policy optimisation over trees of rollouts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

FAILED, BAD_CONFIG, NOTHING_LEARNT, INTERRUPTED = 1, 2, 3, 130


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"branchwise {version('branchwise')}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:  `branchwise train recipes/quickstart/config.yaml`  ·  "
    "`branchwise train my.yaml train.steps=20 tree.answers=4`  ·  `branchwise train my.yaml --dry-run`"
)
def train(
    config: Annotated[Path, typer.Argument(help="A YAML file.", metavar="CONFIG.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, laid over it.", metavar="[KEY=VALUE]…")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check config and data; load no weights.")] = False,
) -> None:
    """Train a model.

    Exit codes: 0 trained, 1 the run failed, 2 the config or the data cannot be, 3 nothing was learnt (no update had a
    gradient), 130 interrupted.
    """
    from branchwise.config import load_config
    from branchwise.train.progress import hush_bars

    hush_bars()
    settings = load_config(config, overrides)
    if dry_run:
        from branchwise.train.dry_run import dry_run as check

        for line in check(settings):
            typer.echo(line)
        return
    from branchwise.train.trainer import Trainer

    summary = Trainer(config=settings).train()
    if summary["updates"] == 0:
        typer.echo(
            "nothing was learnt: no update had a gradient (every pool was uniform or lacked rewards; see the warnings)",
            err=True,
        )
        raise typer.Exit(NOTHING_LEARNT)


Task = StrEnum("Task", ["math", "code", "choice", "format", "box"])


@app.command(
    epilog="Examples:  `branchwise grade outputs.jsonl --task math --out graded.jsonl`  ·  "
    "`cat outputs.jsonl | branchwise grade - --task choice`"
)
def grade(
    file: Annotated[Path, typer.Argument(help="Outputs, a JSON object a line; `-` for standard input.")],
    task: Annotated[Task, typer.Option(help="What the outputs are.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: standard output.")] = None,
) -> None:
    """Grade a file of outputs: each row again, in the same order, with `reward` and `reason` added.

    Rows have `output` and `answer` (code: tests instead; choice: `choices`, too; format: `output` alone). A row that
    cannot be graded gets the reward null and its reason. Exit codes: 0 graded, 1 no row could be graded, 2 the file
    cannot be read or has no rows.
    """
    from branchwise.rewards.grade import grade_file

    if out is not None and out.exists() and file.exists() and out.samefile(file):
        raise ConfigError(f"--out: {out} is the file that is read; name another")
    try:
        with ExitStack() as stack:
            stdin = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig") if str(file) == "-" else None
            source = stdin or stack.enter_context(file.open(encoding="utf-8-sig"))
            target = stack.enter_context(out.open("w", encoding="utf-8")) if out else sys.stdout
            summary = grade_file(source, task.name, target)  # type: ignore[arg-type]
    except BrokenPipeError:  # whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not summary["rows"]:
        raise ConfigError(f"{file}: no rows; a JSON object a line is expected")
    if sys.stderr.isatty():
        ungraded = f", {summary['ungraded']:.0f} not gradable" if summary["ungraded"] else ""
        typer.echo(f"{summary['rows']:.0f} rows, mean reward {summary['mean']:.4f}{ungraded}", err=True)
    if summary["ungraded"] == summary["rows"]:
        typer.echo("no row could be graded; see their reasons", err=True)
        raise typer.Exit(FAILED)


app.command(epilog=rephrasing.EPILOG)(rephrasing.rephrase)


@app.command(epilog="Examples:  `branchwise presets`  ·  `branchwise presets ta-grpo > my.yaml`")
def presets(name: Annotated[str | None, typer.Argument(help="Print this one whole.")] = None) -> None:
    """List the methods that ship with Branchwise, or print one's config."""
    from branchwise.config import preset_names, preset_path

    if name:
        typer.echo(preset_path(name).read_text(encoding="utf-8").rstrip())
        return
    for preset in preset_names():
        first = preset_path(preset).read_text(encoding="utf-8").splitlines()[0]
        typer.echo(f"{preset:<12} {first.lstrip('# ')}")


def main() -> None:
    """Run the command line; known errors are told in a line or two, without a traceback."""
    try:
        app()
    except ConfigError as error:  # the data's errors are of this kind, too
        typer.echo(str(error), err=True)
        sys.exit(BAD_CONFIG)
    except WorkStopped as error:
        typer.echo(str(error), err=True)
        sys.exit(FAILED)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's answer to control-C, without a word
            typer.echo("interrupted", err=True)
        raise
