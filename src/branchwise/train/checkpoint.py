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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from branchwise.config import Config, ConfigError
from branchwise.config_text import flat

if TYPE_CHECKING:
    from branchwise.train.run import Run
    from branchwise.train.trainer import Trainer

MANIFEST, STATE = "manifest.json", "state.pt"
HARMLESS = (
    "train.output_dir", "train.save_every", "train.keep_checkpoints", "train.trackers", "train.device", "eval.",
    "reward_limits.", "data.eval", "preset",
)  # fmt: skip
"""Keys that may differ between a run and its continuation."""


def write_checkpoint(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a folder that appears at once and whole.

    Raises:
        OSError: the disk is full or not to be written to; nothing is left behind.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        digests = {str(file.relative_to(unfinished)): _synced_digest(file) for file in _files(unfinished)}
        manifest = unfinished / MANIFEST
        manifest.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
        _synced_digest(manifest)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(folder.parent)


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


def thin_out(checkpoints: Path, keep: int) -> None:
    """Leave the state in the newest `keep` checkpoints alone (0: in all); older ones keep their model."""
    for folder in sorted(_numbered(checkpoints), reverse=True)[keep:] if keep else []:
        for name in (MANIFEST, STATE):
            (folder / name).unlink(missing_ok=True)


def state_of(trainer: Trainer, run: Run, step: int, cursor: int) -> dict[str, Any]:
    """All that the steps after `step` depend on; every process must call it."""
    return {
        "step": step,
        "config": trainer.config.model_dump(mode="json"),
        "weights": {name: p.detach() for name, p in _trained(trainer).items()},
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "processes": trainer.world.gather([{"cursor": cursor, "random": _random_state()}]),
        "run": run.state(),
    }


def restore(trainer: Trainer, run: Run, state: dict[str, Any]) -> None:
    """Put a run where `state_of` found it.

    Raises:
        ConfigError: the config has changed in what the remaining steps depend on.
    """
    if problems := list(changes(state["config"], trainer.config)):
        raise ConfigError("\n".join(problems))
    if len(state["processes"]) != trainer.world.size:
        raise ConfigError(
            f"--resume: the run had {len(state['processes'])} processes, now {trainer.world.size}; start as many"
        )
    with torch.no_grad():
        for name, parameter in _trained(trainer).items():
            parameter.copy_(state["weights"][name])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.scheduler.load_state_dict(state["scheduler"])
    mine = state["processes"][trainer.world.rank]
    trainer.stream.cursor = mine["cursor"]
    _set_random_state(mine["random"])
    run.restore(state["run"])
    trainer.engine.sync(trainer.policy.model)


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


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _numbered(checkpoints: Path) -> list[Path]:
    """Checkpoints that have a state, or did and lost it."""
    folders = [folder for folder in checkpoints.glob("*") if folder.name.isdigit()]
    return [folder for folder in folders if (folder / STATE).exists() or (folder / MANIFEST).exists()]


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _synced_digest(file: Path) -> str:
    _sync(file)
    return _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
