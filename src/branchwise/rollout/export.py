"""The policy's weights as a checkpoint would name them, for engines that hold a copy of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from branchwise.errors import ConfigError

ROUNDING_TOLD = 0.1
"""Share of changed weights that rounding undoes, from which it is worth a warning."""


@dataclass(slots=True)
class Rounding:
    """How much of a merged adapter a low precision keeps."""

    touched: int = 0
    """Weights that the adapter changes."""
    lost: int = 0
    """Those of them that are the base's again once rounded."""

    @property
    def share(self) -> float:
        return self.lost / self.touched if self.touched else 0.0


def is_adapted(policy: Any) -> bool:
    return isinstance(policy, PeftModel)


@torch.no_grad()
def full_weights(policy: Any, dtype: torch.dtype, rounding: Rounding | None = None) -> dict[str, Tensor]:
    """Every weight of the policy by its name in a checkpoint, adapters merged; a tied head stands under both names.

    The policy itself stays as it is: a merged weight is a new tensor, computed in float32 and rounded once, to `dtype`.

    Args:
        dtype: of the engine's weights.
        rounding: is filled in where an adapter is merged.
    """
    if not is_adapted(policy):
        return _as_saved(policy, policy.state_dict())
    if not _is_plain_lora(policy):
        merged = copy.deepcopy(policy).merge_and_unload()
        return _as_saved(merged, merged.state_dict())
    weights = base_state(policy)
    for name, layer in _lora_layers(policy):
        base = layer.get_base_layer().weight
        delta = sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
        weights[f"{name}.weight"] = merged = (base.float() + delta).to(dtype)
        if rounding is not None:
            changed = delta != 0
            rounding.touched += int(changed.sum())
            rounding.lost += int(((merged == base.to(dtype)) & changed).sum())
    return _as_saved(policy.get_base_model(), weights)


def has_tied_head(policy: Any) -> bool:
    base = policy.get_base_model() if is_adapted(policy) else policy
    head = base.get_output_embeddings()
    return head is not None and head.weight is base.get_input_embeddings().weight


def base_weights(policy: Any) -> dict[str, Tensor]:
    """The weights under a policy's adapter, as a checkpoint names them."""
    return _as_saved(policy.get_base_model(), base_state(policy))


def base_state(policy: Any) -> dict[str, Tensor]:
    """The base model's state without what peft put into it."""
    state = policy.get_base_model().state_dict()
    return {name.replace(".base_layer.", "."): w for name, w in state.items() if ".lora_" not in name}


def adapter(policy: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A LoRA adapter's tensors and config, named as peft saves them.

    Raises:
        ConfigError: the adapter is of a kind that vLLM cannot hold beside its weights.
    """
    if not _is_plain_lora(policy):
        raise ConfigError(
            "engine.lora: 'adapter' takes plain LoRA on linear layers (no DoRA, no bias, no modules_to_save); "
            "set engine.lora: merge"
        )
    config = policy.peft_config[policy.active_adapter].to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    return get_peft_model_state_dict(policy), config


def save_full(policy: Any, folder: Path, dtype: torch.dtype, rounding: Rounding | None = None) -> None:
    """Write an untied checkpoint, weights alone: enough for `reload_weights` of a server on the same disk."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = full_weights(policy, dtype, rounding)
    # a head tied to the embedding shares its memory, which safetensors refuses
    seen: set[int] = set()
    for name, weight in weights.items():
        weights[name] = weight.clone() if weight.data_ptr() in seen else weight.contiguous()
        seen.add(weight.data_ptr())
    save_file({name: w.cpu() for name, w in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def rounding_message(rounding: Rounding, dtype: torch.dtype) -> str:
    return (
        f"merging the adapter into {str(dtype).removeprefix('torch.')} weights rounds {rounding.share:.0%} of the "
        "weights that it changes back to the base's: the engine hardly samples from the policy; set engine.lora: "
        "adapter, or sampling.dtype: float32"
    )


def _as_saved(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renamed, and fused experts split, where transformers' names in memory are not those of checkpoints."""
    return revert_weight_conversion(model, weights)


def _lora_layers(policy: Any) -> Iterator[tuple[str, Any]]:
    for name, module in policy.get_base_model().named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


def _is_plain_lora(policy: Any) -> bool:
    """Whether the adapter is LoRA on linear layers and nothing else."""
    extra = [n for n, _ in policy.named_parameters() if ".modules_to_save." in n or ".lora_magnitude" in n]
    odd = [n for n, _ in policy.named_parameters() if ".lora_" in n and ".lora_A." not in n and ".lora_B." not in n]
    config = policy.peft_config[policy.active_adapter]
    adapted = sum(1 for n, _ in policy.named_parameters() if ".lora_A." in n)
    plain = sum(1 for _ in _lora_layers(policy)) * len(policy.active_adapters)
    bias = getattr(config, "bias", "none") != "none"
    return not extra and not odd and not bias and plain > 0 and adapted == plain
