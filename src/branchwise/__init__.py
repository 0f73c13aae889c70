"""Group-relative policy optimisation over trees of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchwise.config import Config, load_config
    from branchwise.errors import ConfigError
    from branchwise.train.trainer import Trainer

__all__ = ["Config", "ConfigError", "Trainer", "load_config"]


def __getattr__(name: str) -> Any:
    # nothing loads, least of all torch, until it is asked for
    from importlib import import_module

    homes = {"Config": "config", "ConfigError": "errors", "Trainer": "train.trainer", "load_config": "config"}
    if name not in homes:
        raise AttributeError(f"module 'branchwise' has no attribute {name!r}")
    return getattr(import_module(f"branchwise.{homes[name]}"), name)
