"""The optimizer, from the config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from branchwise.config import ConfigError, TrainConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """AdamW in one fused pass over the weights, or bitsandbytes' with 8-bit states.

    Raises:
        ConfigError: 8-bit states without bitsandbytes or a GPU.
    """
    settings: dict[str, Any] = {"lr": config.learning_rate, "betas": config.betas, "weight_decay": config.weight_decay}
    if config.optimizer == "adamw":
        return AdamW(parameters, fused=True, **settings)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError:
        raise ConfigError(
            "train.optimizer: 'adamw_8bit' needs bitsandbytes; pip install 'branchwise[quantized]', or set adamw"
        ) from None
    if not torch.cuda.is_available():
        raise ConfigError("train.optimizer: 'adamw_8bit' runs on GPUs alone; set train.optimizer: adamw")
    return AdamW8bit(parameters, **settings)
