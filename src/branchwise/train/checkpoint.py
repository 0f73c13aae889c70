"""A run's whole state on disk, and back to the bit. A checkpoint is whole or it is none.

A folder is filled under another name, each file synced and its SHA-256 written down in `manifest.json`, which comes
last; then it is renamed. What a crash leaves behind is `NAME.unfinished`, which nothing reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from branchwise.config import Config, ConfigError, TrainConfig
from branchwise.config_text import flat
from branchwise.tree import Question

if TYPE_CHECKING:
    from branchwise.train.ahead import Ahead
    from branchwise.train.run import Run
    from branchwise.train.trainer import Trainer

MANIFEST, STATE = "manifest.json", "state.pt"
FORMAT = 1
"""Of the state; raised whenever an older one could not be gone on with."""
MARGIN = 16 << 20
"""Bytes that a disk must have left beside a checkpoint's tensors: for its other files, and for the logs."""
HARMLESS = (
    "train.output_dir", "train.save_every", "train.keep_", "train.resume", "train.max_not_finite", "train.trackers",
    "train.device", "eval.", "reward_limits.", "data.eval", "data.max_dropped", "preset",
)  # fmt: skip
"""Keys that may differ between a run and its continuation."""


def write_checkpoint(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a folder that appears at once and whole.

    Raises:
        OSError: the disk is full or not to be written to; nothing is left behind.
    """
    unfinished, replaced = (folder.with_name(f"{folder.name}.{end}") for end in ("unfinished", "replaced"))
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        digests = {str(file.relative_to(unfinished)): _synced_digest(file) for file in _files(unfinished)}
        manifest = unfinished / MANIFEST
        manifest.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
        _synced_digest(manifest)
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():  # until the new one is whole, the old one is
            folder.rename(replaced)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        digests = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{MANIFEST}: {error.strerror if isinstance(error, OSError) else 'not JSON'}"
    for name, digest in digests.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} is not what was written"
    return None


def newest_whole(checkpoints: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint without damage, and a line for each damaged one that is newer."""
    passed_over: list[str] = []
    for folder in sorted(_numbered(checkpoints), reverse=True):
        if (wrong := damage(folder)) is None:
            return folder, passed_over
        passed_over.append(f"{folder} is damaged and passed over: {wrong}")
    return None, passed_over


def chosen(checkpoints: Path, wanted: str | Path) -> tuple[Path | None, list[str]]:
    """The checkpoint that `train.resume` stands for (None: a new run), and a line for each that is passed over.

    Raises:
        ConfigError: the one that is named is damaged or another run's, or there is none where there must be.
    """
    if wanted in ("auto", "must"):
        folder, passed_over = newest_whole(checkpoints)
        if folder is None and wanted == "must":
            told = "".join(f"; {line}" for line in passed_over)
            raise ConfigError(f"train.resume: 'must', but {checkpoints} holds no whole checkpoint{told}; set auto")
        return folder, passed_over
    folder = Path(wanted)
    if not folder.is_dir():
        raise ConfigError(f"train.resume: {folder}: no such folder; name a checkpoint, or set never, auto or must")
    if not (folder / MANIFEST).exists() and not (folder / STATE).exists():
        raise ConfigError(
            f"train.resume: {folder} holds no state to go on from (train.keep_checkpoints: older ones keep their model "
            "alone); name another, or auto for the newest whole one"
        )
    if (wrong := damage(folder)) is not None:
        raise ConfigError(f"train.resume: {folder} is damaged: {wrong}; name another, or auto for the newest whole one")
    if folder.resolve().parent != checkpoints.resolve():
        raise ConfigError(f"train.resume: {folder} is another run's; set train.output_dir to that run's folder")
    return checkpoints / folder.resolve().name, []


def thin_out(checkpoints: Path, config: TrainConfig, best: int | None) -> None:
    """Leave the state in the checkpoints that are to be kept alone; others keep their model, or go.

    Args:
        best: the step of the best one by `keep_best`.
    """
    newest_first = sorted(_numbered(checkpoints), reverse=True)
    for folder in newest_first[config.keep_checkpoints :] if config.keep_checkpoints else []:
        step = int(folder.name)
        if step == best or (config.keep_every and step % config.keep_every == 0):
            continue
        for name in (MANIFEST, STATE):
            (folder / name).unlink(missing_ok=True)
        if not config.keep_models:
            shutil.rmtree(folder)


def clear_up(run: Path, step: int) -> list[str]:
    """Make way for the steps after `step`: what was left half written goes, later checkpoints are set aside.

    A later one would hide those still to come, and be resumed from in their place; it is damaged, or the run is to go
    on from before it.

    Returns:
        A line for each that was set aside.
    """
    for place in (run, run / "checkpoints"):
        replaced = [folder for folder in place.glob("*.replaced") if folder.with_suffix("").exists()]
        for left in (*place.glob("*.unfinished"), *replaced):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
    told = []
    for folder in _numbered(run / "checkpoints"):
        if int(folder.name) > step:
            free = next(p for i in count(1) if not (p := folder.with_name(f"{folder.name}.aside-{i}")).exists())
            told.append(f"{folder} is later than step {step}, after which the run goes on; it is now {free.name}")
            folder.rename(free)
    return told


def lacking(trainer: Trainer, state: dict[str, Any], folder: Path) -> str | None:
    """Whether the disk has too little room for a checkpoint, by the tensors that it holds."""
    needed = int(1.02 * (_bytes(trainer.policy.model.state_dict()) + _bytes(state))) + MARGIN
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if free >= needed:
        return None
    return f"it needs {needed / 1e9:.3g} GB and {folder.parent} has {free / 1e9:.3g} GB free; make room there"


def state_of(trainer: Trainer, run: Run, ahead: Ahead, step: int, random: dict[str, Any] | None) -> dict[str, Any]:
    """All that the steps after `step` depend on; every process must call it, with `ahead` paused.

    Args:
        random: the random states after `step`, where something has drawn since.
    """
    return {
        "format": FORMAT,
        "step": step,
        "config": trainer.config.model_dump(mode="json"),
        "questions": trainer.fingerprint,
        "weights": {name: p.detach() for name, p in _trained(trainer).items()},
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "processes": trainer.world.gather([{"random": random or random_state(), "ahead": ahead.state()}]),
        "run": run.state(),
    }


def restore(trainer: Trainer, run: Run, ahead: Ahead, state: dict[str, Any]) -> None:
    """Put a run where `state_of` found it.

    Raises:
        ConfigError: the config or the data have changed in what the remaining steps depend on, or none remains.
    """
    if state.get("format") != FORMAT:
        raise ConfigError(
            "train.resume: the checkpoint is of another version of Branchwise; resume with the one that versions.json "
            "names, or start another run (train.output_dir)"
        )
    if problems := list(changes(state["config"], trainer.config)):
        raise ConfigError("\n".join(problems))
    if state["step"] >= trainer.config.train.steps:
        raise ConfigError(
            f"train.steps: {trainer.config.train.steps}, but the run has gone on to step {state['step']} already; set "
            "it higher, or go on from an earlier checkpoint (train.resume)"
        )
    if state["questions"] != trainer.fingerprint:
        raise ConfigError(
            "data.train: the questions, their order or their rephrasings are not those that the run had; put the "
            "data back, or start another run (train.output_dir)"
        )
    if len(state["processes"]) != trainer.world.size:
        raise ConfigError(
            f"train.resume: the run had {len(state['processes'])} processes, now {trainer.world.size}; start as many"
        )
    with torch.no_grad():
        for name, parameter in _trained(trainer).items():
            parameter.copy_(state["weights"][name])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.scheduler.load_state_dict(state["scheduler"])
    mine = state["processes"][trainer.world.rank]
    ahead.restore(state["step"], mine["ahead"])
    trainer.stream.cursor = ahead.cursor
    _set_random_state(mine["random"])
    run.restore(state["run"])
    trainer.engine.sync(trainer.policy.model)


def fingerprint(questions: Sequence[Question]) -> str:
    """SHA-256 of what is asked and answered, in order: a place in the data means nothing in other data."""
    digest = hashlib.sha256()
    for question in questions:
        pictures = [Path(picture.name).name for picture in question.images]
        asked = [question.phrasings, question.columns, pictures]
        digest.update(json.dumps(asked, default=lambda other: type(other).__name__, skipkeys=True).encode())
    return digest.hexdigest()


def changes(before: dict[str, Any], config: Config) -> Iterator[str]:
    """One line for each key that differs from the run's and must not."""
    old, new = flat(before), flat(config.model_dump(mode="json"))
    if old.get("train.schedule") == "constant":
        old.pop("train.steps", None)
        new.pop("train.steps", None)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not key.startswith(HARMLESS):
            yield (
                f"{key}: {new.get(key)!r}, but the run that is to be resumed had {old.get(key)!r}; set it back, or "
                "start another run (train.output_dir)"
            )


def _trained(trainer: Trainer) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in trainer.policy.model.named_parameters() if p.requires_grad}


def not_finite(trainer: Trainer) -> str | None:
    """The name of a trained weight that holds a NaN or an infinity."""
    return next((name for name, p in _trained(trainer).items() if not torch.isfinite(p).all()), None)


def random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _bytes(values: Any) -> int:
    """What the tensors among the values take; tied ones are written once."""
    return sum({t.data_ptr(): t.nbytes for t in _tensors(values)}.values())


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _numbered(checkpoints: Path) -> list[Path]:
    """Checkpoints that have a state, or did and lost it."""
    folders = [folder for folder in checkpoints.glob("*") if folder.name.isdigit()]
    return [folder for folder in folders if (folder / STATE).exists() or (folder / MANIFEST).exists()]


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _synced_digest(file: Path) -> str:
    sync(file)
    return _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
