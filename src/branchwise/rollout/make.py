"""From a config to the engine it asks for."""

from __future__ import annotations

from typing import Any

import torch

from branchwise.config import Config, ConfigError
from branchwise.rollout.engine import Engine


def make_engine(
    config: Config, model: Any, processing_class: Any, *, precision: torch.dtype, device: torch.device
) -> Engine:
    """The engine of `config.engine`, with a model's present weights.

    Args:
        model: the policy, peft-wrapped or not.
        processing_class: its tokenizer or processor.
        precision: what `sampling.dtype: auto` stands for.
        device: where the in-process engine samples.

    Raises:
        ConfigError: it cannot be had here, or cannot take this policy.
    """
    s = config.sampling
    dtype = precision if s.dtype == "auto" else getattr(torch, s.dtype)
    kv_bytes = None if s.kv_memory_gb is None else 1e9 * s.kv_memory_gb
    if config.engine.kind == "transformers":
        from branchwise.rollout.transformers import TransformersEngine

        return TransformersEngine(
            model, processing_class, dtype=dtype, device=device, max_rows=s.max_rows, kv_bytes=kv_bytes
        )
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise ConfigError(
            f"engine: {config.engine.kind!r} is fed by one process, and this run has "
            f"{torch.distributed.get_world_size()}; start one, or set engine: transformers"
        )
    from branchwise.rollout.transformers import stop_ids

    common: dict[str, Any] = {"dtype": dtype, "stop": stop_ids(_plain(model), tokenizer)}
    if config.engine.kind == "vllm":
        from branchwise.rollout.vllm import VllmEngine

        return VllmEngine(
            model,
            tokenizer,
            settings=config.engine,
            positions=longest(config),
            max_rows=s.max_rows,
            kv_bytes=kv_bytes,
            **common,
        )
    from branchwise.rollout.vllm_server import VllmServers

    return VllmServers(
        model,
        tokenizer,
        settings=config.engine,
        folder=config.engine.folder or f"{config.train.output_dir}-weights",
        room=s.max_rows,
        still=config.train.async_depth == 0,
        **common,
    )


def longest(config: Config) -> int:
    """Tokens of the longest prompt and response that a run can meet, with room for a marker set by force."""
    room = 16 if config.tree.unclosed == "force_close" else 1
    s = config.sampling
    return config.data.max_prompt_tokens + s.max_thought_tokens + s.max_answer_tokens + room


def _plain(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
