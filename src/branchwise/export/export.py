"""`branchwise export`: weights, tokenizer, generation config and model card in a folder that loads anywhere."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from branchwise.config import ConfigError
from branchwise.export.card import model_card
from branchwise.export.source import Checkpoint, find_checkpoint
from branchwise.policy.load import load_processing, load_weights
from branchwise.rollout.export import ROUNDING_TOLD, Rounding
from branchwise.rollout.transformers import stop_ids
from branchwise.train.checkpoint import MANIFEST, STATE, write_checkpoint

CPU = torch.device("cpu")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json")
WRITTEN = ("config.json", "generation_config.json", "README.md", MANIFEST, STATE)
"""What an export writes anew, or is the run's alone."""


def export(
    place: str | Path,
    to: str | Path,
    *,
    adapter: bool = False,
    dtype: str | None = None,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Write a run's model where others can load it; the folder appears at once and whole.

    An adapter is merged into its base in float32 and rounded once; how much of the update rounding undoes is said.

    Args:
        place: a run's folder (its final model, else its newest whole checkpoint), or a checkpoint in it.
        to: the folder to be written.
        adapter: export the adapter alone.
        dtype: `float32`, `bfloat16` or `float16`; default: as it was saved.
        force: replace an earlier export.

    Returns:
        The folder.

    Raises:
        ConfigError: no or a damaged checkpoint, a target in use, no adapter, or a base that cannot be loaded.
    """
    source = find_checkpoint(Path(place))
    for note in source.notes:
        say(note)
    target = Path(to).absolute()
    _check_target(target, source, force)
    kept = None if dtype is None else getattr(torch, dtype)
    fill = _adapter_alone if adapter else _merged
    try:
        write_checkpoint(target, lambda folder: fill(source, folder, kept, say))
    except SafetensorError as error:
        raise ConfigError(f"{source.folder} is damaged: {error}; name another checkpoint of the run") from error
    except OSError as error:
        raise ConfigError(f"--to: {target} cannot be written: {error.strerror or error}") from error
    return target


def _check_target(target: Path, source: Checkpoint, force: bool) -> None:
    theirs = source.run.resolve()
    if target.resolve() == theirs or target.resolve() in theirs.parents or target.resolve().is_relative_to(theirs):
        raise ConfigError(f"--to: {target} is the run's own folder, or holds it; name another")
    if target.is_file():
        raise ConfigError(f"--to: {target} is a file; name a folder")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        raise ConfigError(f"--to: {target} is not empty; name another folder, or replace it with --force")
    if not (target / MANIFEST).is_file():
        raise ConfigError(f"--to: {target} holds no earlier export, which --force would replace; name another folder")


def _merged(source: Checkpoint, folder: Path, dtype: torch.dtype | None, say: Callable[[str], None]) -> None:
    model, before = _trained(source, dtype)
    held = next(model.parameters()).dtype
    dtype = dtype or _saved_dtype(source) or held
    rounding = Rounding()
    if dtype.itemsize < held.itemsize:
        if before is None:
            say(f"warning: how much of the training {_name(dtype)} rounds away is not known: its base is not at hand")
        else:
            _count(rounding, before, model.state_dict(), dtype)
    if rounding.share >= ROUNDING_TOLD:
        say(
            f"warning: {_name(dtype)} rounds {rounding.share:.0%} of the weights that training changed back to the "
            "base's: what is exported is hardly what was trained; set --dtype float32"
            + (", or export the adapter alone (--adapter)" if source.adapter else "")
        )
    tokenizer = load_processing(source.config.model.model_copy(update={"path": str(source.folder), "revision": None}))
    model.to(dtype)
    _stop_where_training_did(model, tokenizer)
    model.save_pretrained(folder)
    _copy_others(source.folder, folder)
    card = model_card(source, dtype=_name(dtype), rounding=rounding, adapter=False)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _adapter_alone(source: Checkpoint, folder: Path, dtype: torch.dtype | None, say: Callable[[str], None]) -> None:
    from safetensors.torch import load_file, save_file

    if source.adapter is None:
        raise ConfigError(f"--adapter: {source.run} trained whole weights (model.lora is null); leave it out")
    for file in source.adapter.iterdir():
        if file.name.startswith("adapter_"):
            shutil.copy2(file, folder)
    file = folder / "adapter_model.safetensors"
    if dtype is not None:
        save_file({name: w.to(dtype) for name, w in load_file(file).items()}, file, metadata={"format": "pt"})
    _copy_others(source.folder, folder)
    if (settings := source.folder / "generation_config.json").is_file():
        shutil.copy2(settings, folder)
    held = str(next(iter(load_file(file).values())).dtype).removeprefix("torch.")
    card = model_card(source, dtype=held, rounding=Rounding(), adapter=True)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _trained(source: Checkpoint, dtype: torch.dtype | None) -> tuple[Any, Mapping[str, Tensor] | None]:
    """The trained model, adapters merged in float32, and the weights that it was trained from where they are needed."""
    m = source.config.model
    saved = _saved_dtype(source)
    if source.adapter is None:
        own = m.model_copy(update={"path": str(source.folder), "revision": None, "dtype": "auto"})
        model = load_weights(own, CPU, saved or torch.float32)
        narrower = dtype is not None and dtype.itemsize < model.dtype.itemsize
        return model, _weights_before(source, model.dtype) if narrower else None
    from peft import PeftModel

    base = _base(source, saved or AutoConfig.from_pretrained(m.path, revision=m.revision).dtype or torch.float32)
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    return PeftModel.from_pretrained(base.float(), source.adapter).merge_and_unload(), before


def _base(source: Checkpoint, dtype: torch.dtype) -> Any:
    m = source.config.model.model_copy(update={"load_in_4bit": False, "dtype": "auto"})
    try:
        return load_weights(m, CPU, dtype)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; the adapter is merged into its base, which has to be there: export it alone (--adapter)"
        ) from error


def _weights_before(source: Checkpoint, dtype: torch.dtype) -> Mapping[str, Tensor] | None:
    try:
        return _base(source, dtype).state_dict()
    except ConfigError:
        return None


@torch.no_grad()
def _count(rounding: Rounding, before: Mapping[str, Tensor], after: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Add up the weights that training changed, and those of them that a type makes the same again."""
    for name, weight in after.items():
        if (old := before.get(name)) is None or old.shape != weight.shape:
            continue
        changed = old.float() != weight.float()
        rounding.touched += int(changed.sum())
        rounding.lost += int(((old.to(dtype) == weight.to(dtype)) & changed).sum())


def _saved_dtype(source: Checkpoint) -> torch.dtype | None:
    """Of the weights in the checkpoint; None where it holds an adapter alone."""
    if not (source.folder / "config.json").is_file():
        return None
    return AutoConfig.from_pretrained(source.folder, trust_remote_code=source.config.model.trust_remote_code).dtype


def _stop_where_training_did(model: Any, tokenizer: Any) -> None:
    ids = sorted(stop_ids(model, tokenizer))
    if model.generation_config is None:
        model.generation_config = GenerationConfig()
    model.generation_config.eos_token_id = ids[0] if len(ids) == 1 else ids


def _copy_others(source: Path, target: Path) -> None:
    """The tokenizer, its chat template, a processor, a model's own code: all files that hold no weights."""
    for file in source.iterdir():
        if file.is_file() and file.name not in WRITTEN and not any(fnmatch.fnmatch(file.name, w) for w in WEIGHTS):
            shutil.copy2(file, target)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
