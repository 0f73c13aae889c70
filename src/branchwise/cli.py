"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
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


app.command(epilog=rephrasing.EPILOG)(rephrasing.rephrase)


@app.command(epilog="Example:  `branchwise serve my.yaml --port 8000`")
def serve(
    config: Annotated[Path, typer.Argument(help="The YAML file of the training.", metavar="CONFIG.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, laid over it.", metavar="[KEY=VALUE]…")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
) -> None:
    """Start a vLLM server that a training with `engine: {kind: vllm_server, urls: [...]}` samples from."""
    import os

    from branchwise.config import load_config
    from branchwise.rollout.serve import server_command

    command, environment = server_command(load_config(config, overrides), host, port)
    typer.echo(" ".join(command))
    # in this process's place, so that signals reach it
    os.execvpe(command[0], command, os.environ | environment)


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
