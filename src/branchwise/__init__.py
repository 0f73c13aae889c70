"""Group-relative policy optimisation over trees of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchwise.config import Config, ConfigError, load_config

if TYPE_CHECKING:
    from branchwise.train.trainer import Trainer

__all__ = ["Config", "ConfigError", "Trainer", "load_config"]


def __getattr__(name: str) -> Any:
    # torch and transformers load when a trainer is first asked for
    if name == "Trainer":
        from branchwise.train.trainer import Trainer

        return Trainer
    raise AttributeError(f"module 'branchwise' has no attribute {name!r}")
