"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import io
import os
import sys
import warnings
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
    "`branchwise train my.yaml train.steps=20 tree.answers=4`  ·  `branchwise train my.yaml --dry-run`  ·  "
    "`branchwise train my.yaml --resume`"
)
def train(
    config: Annotated[Path, typer.Argument(help="A YAML file.", metavar="CONFIG.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, laid over it.", metavar="[KEY=VALUE]…")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest whole checkpoint, to the bit (train.resume=auto).")
    ] = False,
    resume_from: Annotated[
        Path | None, typer.Option("--resume-from", help="Go on from this checkpoint of the run.", metavar="FOLDER")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check config and data; load no weights.")] = False,
) -> None:
    """Train a model.

    Exit codes: 0 trained, 1 the run could not go on, 2 the config or the data cannot be, 3 nothing was learnt (no
    update had a gradient), 130 interrupted and 143 terminated (the state is saved).
    """
    from branchwise.config import load_config

    settings = load_config(config, overrides)
    if dry_run:
        from branchwise.train.dry_run import dry_run as check

        for line in check(settings):
            typer.echo(line)
        return
    from branchwise.train.trainer import Trainer

    summary = Trainer(config=settings).train(resume_from_checkpoint=resume_from or resume or None)
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
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{error.filename or out or 'standard output'}: {error.strerror}") from None
    if not summary["rows"]:
        raise ConfigError(f"{file}: no rows; a JSON object a line is expected")
    if sys.stderr.isatty():
        ungraded = f", {summary['ungraded']:.0f} not gradable" if summary["ungraded"] else ""
        typer.echo(f"{summary['rows']:.0f} rows, mean reward {summary['mean']:.4f}{ungraded}", err=True)
    if summary["ungraded"] == summary["rows"]:
        typer.echo("no row could be graded; see their reasons", err=True)
        raise typer.Exit(FAILED)


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


@app.command(
    name="eval",
    epilog="Examples:  `branchwise eval runs/mine --suite gsm8k`  ·  "
    "`branchwise eval base-model runs/mine --suite math500=math500.jsonl -n 16 -k 1,4,16`  ·  "
    "`branchwise eval runs/mine --checkpoints`",
)
def evaluate(
    models: Annotated[list[str], typer.Argument(help="Runs, folders of weights, or Hugging Face ids.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(help="NAME, NAME=FILE, FILE or reasoning_gym:TASK; default: the run's held-out data."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Responses to each problem.")] = 8,
    k: Annotated[str | None, typer.Option("--pass", "-k", help="k of pass@k; default: powers of 2 up to n.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default 0.6.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default 0.95.")] = None,
    max_thought_tokens: Annotated[int | None, typer.Option()] = None,
    max_answer_tokens: Annotated[int | None, typer.Option()] = None,
    marker: Annotated[
        str | None, typer.Option(help="Ends a thought, such as `</think>`; '': none; default: the run's.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="The user's message around {question}.")] = None,
    system_prompt: Annotated[str | None, typer.Option()] = None,
    image_column: Annotated[
        str | None, typer.Option(help="What holds images (data.image_column); '': `images` or `image`.")
    ] = None,
    max_pixels: Annotated[int | None, typer.Option(help="Of an image (data.max_pixels); default: the run's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many problems.")] = None,
    max_dropped: Annotated[
        float | None,
        typer.Option(help="Share of a suite's rows that may be unusable (data.max_dropped); default 0.01."),
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    batch: Annotated[int | None, typer.Option(help="Problems sampled together and stored at once.")] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Every saved model of one run.")] = False,
    train_data: Annotated[str | None, typer.Option(help="Check suites against it; default: the run's own.")] = None,
    diversity: Annotated[
        str | None, typer.Option(help="A sentence-transformers model, or `default`: measure diversity with it.")
    ] = None,
    device: Annotated[str | None, typer.Option()] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="transformers (default), vllm, or '{kind: vllm_server, urls: [...]}'.")
    ] = None,
    kv_memory_gb: Annotated[
        float | None, typer.Option(help="The most that keys and values may take; default: a third of what is free.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for samples and tables.")] = None,
) -> None:
    """Measure models: pass@k, avg@n, maj@k with intervals; every sample is stored, and an interrupted one goes on."""
    from branchwise.config_text import parse_override
    from branchwise.diagnostics.responses import DEFAULT_EMBEDDER
    from branchwise.evaluate.command import powers_of_two, run_eval

    options = {
        "samples": samples, "k": k.split(",") if k else powers_of_two(samples),
        "temperature": temperature, "top_p": top_p, "max_thought_tokens": max_thought_tokens,
        "max_answer_tokens": max_answer_tokens, "marker": marker, "template": template,
        "system_prompt": system_prompt, "limit": limit, "seed": seed, "batch": batch, "device": device, "dtype": dtype,
        "engine": parse_override(f"engine={engine}")["engine"] if engine else None, "max_dropped": max_dropped,
        "kv_memory_gb": kv_memory_gb,
        "image_column": image_column, "max_pixels": max_pixels,
    }  # fmt: skip
    chosen = DEFAULT_EMBEDDER if diversity == "default" else diversity
    typer.echo(
        run_eval(
            models, suite or [], out, options, checkpoints=checkpoints, train_data=train_data,
            diversity_model=chosen, say=typer.echo,
        )
    )  # fmt: skip


@app.command(
    epilog="Examples:  `branchwise report runs/mine`  ·  `branchwise report runs/grpo runs/ta-grpo --out both.html`"
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several are laid over each other.")],
    out: Annotated[Path | None, typer.Option(help="The file; default: report.html in the first run.")] = None,
    all_trees: Annotated[
        bool, typer.Option("--all-trees", help="Every tree, however large; else evenly spaced steps of a long run.")
    ] = False,
) -> None:
    """Write one HTML file with numbers, curves and trees; it needs no network."""
    from branchwise.report.page import TREE_BYTES, write_report

    file = write_report(runs, out or runs[0] / "report.html", None if all_trees else TREE_BYTES)
    typer.echo(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


@app.command(epilog="Example:  `branchwise watch runs/mine`")
def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run in progress.")],
    port: Annotated[int, typer.Option(help="Of the page on this machine; 0: the terminal alone.")] = 8765,
) -> None:
    """Show a run in progress, in the terminal and in the browser."""
    from branchwise.report.watch import watch as show

    show(run, port)


@app.command(epilog="Examples:  `branchwise diagnose runs/mine`  ·  `branchwise diagnose runs/mine --coupling`")
def diagnose(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    coupling: Annotated[
        bool,
        typer.Option("--coupling", help="Also the cosine between thoughts' and answers' gradients (loads the model)."),
    ] = False,
    step: Annotated[int | None, typer.Option(help="Step whose trees are taken for it; default: the last.")] = None,
) -> None:
    """Say in words what stands out in a run, and what to change."""
    from branchwise.diagnostics.diagnose import diagnose as find
    from branchwise.diagnostics.history import read_history

    for finding in find(read_history(run)):
        typer.echo(str(finding))
    if coupling:
        from branchwise.diagnostics.coupling import run_coupling

        typer.echo(run_coupling(run, step))


@app.command(
    epilog="Examples:  `branchwise doctor`  ·  `branchwise doctor my.yaml`  ·  "
    "`branchwise doctor my.yaml train.pack_tokens=1024 --json`"
)
def doctor(
    config: Annotated[Path | None, typer.Argument(help="A YAML file.", metavar="[CONFIG.yaml]")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, laid over it.", metavar="[KEY=VALUE]…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object; sizes in bytes.")] = False,
) -> None:
    """Say what this machine has, and of a config whether its run fits and what to change if it does not.

    Sizes come from the model's config alone; no weights are loaded. Exit codes: 0 the run fits (or no config was
    given), 1 it does not, 2 the config cannot be.
    """
    import json

    from branchwise.config import load_config
    from branchwise.doctor.checkup import checkup, show

    found = checkup(load_config(config, overrides) if config else None)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        show(found)
    if not found.fits:
        raise typer.Exit(FAILED)


Dtype = StrEnum("Dtype", ["float32", "bfloat16", "float16"])


@app.command(
    epilog="Examples:  `branchwise export runs/mine --to my-model`  ·  "
    "`branchwise export runs/mine/best --to my-adapter --adapter`  ·  "
    "`branchwise export runs/mine --to my-model --dtype bfloat16 --force`"
)
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder (its final model), or a checkpoint in it.")],
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="The adapter alone; default: merged.")] = False,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the weights; default: as they were saved.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write a run's model as others load it: safetensors, tokenizer, generation config and a model card.

    An adapter is merged in float32 and rounded once; where rounding undoes much of the training, that is said.
    `manifest.json` holds the SHA-256 of each file. Exit codes: 0 written, 2 the checkpoint or the target cannot be.
    """
    from branchwise.export.export import export as write

    done = write(
        run, to, adapter=adapter, dtype=dtype.value if dtype else None, force=force,
        say=lambda line: typer.echo(line, err=True),
    )  # fmt: skip
    size = sum(file.stat().st_size for file in done.rglob("*") if file.is_file())
    typer.echo(f"{done} ({size / 1e6:,.1f} MB)")


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


def hush_libraries() -> None:
    """No progress bars of other libraries where stderr is no terminal, nor what they have to tell each other alone.

    To be called before they are loaded.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft asks for it


def main() -> None:
    """Run the command line; known errors are told in a line or two, without a traceback."""
    hush_libraries()
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
            try:
                typer.echo("interrupted", err=True)
            except BrokenPipeError:  # control-C ended its reader, too: `2>&1 | tee log`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        raise
