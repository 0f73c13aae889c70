"""What to change in a config whose run does not fit, each change with what the run would then take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from branchwise.config import Config, ConfigError, load_config
from branchwise.config_text import flat, merge
from branchwise.doctor.architecture import Architecture
from branchwise.doctor.memory import Estimate, Part, estimate, pack_sizes, widths_of

LEAST_KV_GB = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """A config's keys with other values, and what the run would then take."""

    settings: dict[str, Any]
    cost: str
    estimate: Estimate

    def __str__(self) -> str:
        keys = ", ".join(f"{key}: {_yaml(value)}" for key, value in flat(self.settings).items())
        return f"{keys} ({self.cost})"


def advise(config: Config, a: Architecture, now: Estimate, have: int) -> list[Change]:
    """Changes that make a run need less: each alone, and where none is enough those that together are.

    Args:
        now: the config's own estimate.
        have: bytes that the device has free.
    """
    tried = [change for wanted, cost in _wanted(config, now, have) if (change := _try(config, a, wanted, cost))]
    alone = [change for change in tried if change.estimate.peak < now.peak]
    if any(change.estimate.peak <= have for change in alone):
        return [change for change in alone if change.estimate.peak <= have]
    needed, joined = tried, _join(config, a, tried)  # what lowers another stage alone may be needed, too
    for change in tried:  # what is not needed beside the others, or does harm there, goes
        without = _join(config, a, [other for other in needed if other is not change])
        if joined and without and without.estimate.peak <= max(have, joined.estimate.peak):
            needed, joined = [other for other in needed if other is not change], without
    return [*alone, joined] if joined and joined.estimate.peak <= have else alone


def _join(config: Config, a: Architecture, changes: list[Change]) -> Change | None:
    settings: dict[str, Any] = {}
    for change in changes:
        settings = merge(settings, change.settings)
    return _try(config, a, settings, "; ".join(change.cost for change in changes)) if changes else None


def _wanted(config: Config, now: Estimate, have: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings and what they cost, cheapest first."""
    held, sampled = widths_of(config, now.device).held, widths_of(config, now.device).sampled
    kv = next((part for part in now.parts if part.name == "KV cache"), None)
    if kv is not None and now.phases["sample"] > have:
        yield {"sampling": {"kv_memory_gb": _less_kv(kv, now, have)}}, "fewer rows at once: slower sampling"
    tokens, _, _ = pack_sizes(config, now.device)
    for part in (2, 4, 8):
        yield {"train": {"pack_tokens": max(16, tokens // part)}}, "smaller packs: the same results, somewhat slower"
    if not config.model.gradient_checkpointing:
        yield {"model": {"gradient_checkpointing": True}}, "the same results, a third more time"
    if config.algorithm.kl > 0 and config.model.lora is None:
        yield {"algorithm": {"kl": 0.0}}, "without a reference model"
    if sampled < held and config.model.lora is None:
        same = "float32" if held == 4 else "bfloat16"
        yield {"sampling": {"dtype": same}}, "samples with the policy's own weights: slower"
    if config.train.optimizer == "adamw" and now.device.type == "cuda":
        yield {"train": {"optimizer": "adamw_8bit"}}, "8-bit optimizer states"
    if config.model.lora is None:
        yield {"model": {"lora": {"r": 16}}}, "trains an adapter instead of all weights"
    if not config.model.load_in_4bit and now.device.type == "cuda":
        lora = config.model.lora.model_dump() if config.model.lora else {"r": 16}
        yield {"model": {"lora": lora, "load_in_4bit": True}}, "an adapter over 4-bit weights"


def _less_kv(kv: Part, now: Estimate, have: int) -> float:
    others = now.phases["sample"] - kv.bytes
    return max(LEAST_KV_GB, round(0.9 * (have - others) / 1e9, 2))


def _try(config: Config, a: Architecture, wanted: dict[str, Any], cost: str) -> Change | None:
    """The change, if the config can be so."""
    try:
        changed = load_config(merge(config.model_dump(), wanted))
        return Change(wanted, cost, estimate(changed, a))
    except ConfigError:
        return None


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
