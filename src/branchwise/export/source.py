"""Which checkpoint an export is made from, and what its run says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.config import Config, ConfigError, load_config
from branchwise.diagnostics.history import History, read_history
from branchwise.evaluate.settings import run_of
from branchwise.train.checkpoint import MANIFEST, STATE, damage, newest_whole


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved model and the run that it comes from."""

    folder: Path
    run: Path
    config: Config
    history: History
    notes: tuple[str, ...] = ()
    """What is worth saying about the choice."""

    @property
    def step(self) -> int | None:
        """The step after which it was saved; None where the run does not say."""
        if (number := self.folder.name.removeprefix("model-")).isdigit():
            return int(number)
        if self.folder.name == "best":
            return (self.history.summary or {}).get("best_step")
        return self.config.train.steps

    @property
    def adapter(self) -> Path | None:
        """The folder of its adapter; over 4-bit weights that is the checkpoint itself. None: whole weights."""
        places = (self.folder / "adapter", self.folder)
        return next((place for place in places if (place / "adapter_config.json").is_file()), None)

    def held_out(self, step: int | None) -> dict[str, Any] | None:
        """The held-out evaluation of a step, without its prefix."""
        record = next((r for r in self.history.held_out if r["step"] == step), None)
        return record and {key.removeprefix("held_out/"): value for key, value in record.items()}


def find_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint that a path names: of a run its final model, else its newest whole checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    if not place.is_dir():
        raise ConfigError(f"{place}: no such folder; name a run, or a checkpoint in it")
    notes: list[str] = []
    if (place / "config.yaml").is_file():
        run, folder = place, place / "model"
        if not folder.is_dir():
            newest, notes = newest_whole(place / "checkpoints")
            if newest is None:
                told = "".join(f"\n{line}" for line in notes)
                raise ConfigError(f"{place}: no model/ and no whole checkpoint to export{told}")
            folder = newest
            notes.append(f"the run has no final model; {folder} is exported")
    else:
        folder, found = place, run_of(place)
        if found is None:
            raise ConfigError(f"{place}: in no run; name a run's folder (with config.yaml), or a checkpoint in it")
        run = found
    if (wrong := _wrong(folder)) is not None:
        raise ConfigError(f"{folder} is damaged: {wrong}; name another checkpoint of the run")
    if not (folder / MANIFEST).exists():
        notes.append(f"{folder} has no checksums any more: whether it is whole shows only as it loads")
    return Checkpoint(folder, run, load_config(run / "config.yaml"), read_history(run), tuple(notes))


def _wrong(folder: Path) -> str | None:
    if folder.suffix == ".unfinished":
        return "its saving was cut off"
    if (folder / MANIFEST).exists() or (folder / STATE).exists():
        return damage(folder)
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "config.json is missing"
    return None
