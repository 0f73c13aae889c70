"""A model's sizes, from its config alone: built on the meta device, where tensors have shapes and no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from branchwise.config import ConfigError, ModelConfig
from branchwise.policy.load import load_architecture, model_class


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a decoder-only language model. Widths are numbers of one token."""

    parameters: int
    """All, each once: a tied head is the embedding."""
    projections: int
    """Those of linear layers under the head, experts among them."""
    vocabulary: int
    tied: bool
    layers: int
    hidden: int
    intermediate: int
    """Of a token's path through the feed-forward part: with experts, of those that it goes through."""
    heads: int
    query: int
    """heads · head size."""
    key: int
    """Key-value heads · head size."""
    attending: int
    """Layers that keep keys and values."""
    head_norms: bool
    """Whether queries and keys are normalised (Qwen3, Gemma 3)."""
    linears: tuple[tuple[str, int, int], ...]
    """Name, inputs and outputs of each linear layer under the head."""


def architecture_of(m: ModelConfig) -> Architecture:
    """The sizes of a config's model; reads config.json and no weights.

    Raises:
        ConfigError: there is no such model, or it is of a kind that cannot be built without its weights.
    """
    config = load_architecture(m)
    return sizes(_on_meta(config, m), config)


def sizes(model: nn.Module, config: Any) -> Architecture:
    """The sizes of a transformers causal language model, wherever its weights are."""
    text = config.get_text_config(decoder=True)
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    linears = tuple(
        (name, module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    parameters = sum(p.numel() for p in model.parameters())
    tied = head is not None and head.weight is embedding.weight
    ends = embedding.weight.numel() + (0 if head is None or tied else head.weight.numel())
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    key_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return Architecture(
        parameters=parameters,
        projections=sum(p.numel() for p in model.parameters() if p.ndim > 1) - ends,
        vocabulary=embedding.weight.shape[0],
        tied=tied,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=_intermediate(text),
        heads=text.num_attention_heads,
        query=text.num_attention_heads * size,
        key=key_heads * size,
        attending=sum("linear" not in kind for kind in kinds),
        head_norms=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        linears=linears,
    )


def _intermediate(text: Any) -> int:
    chosen = getattr(text, "num_experts_per_tok", None)
    width = getattr(text, "moe_intermediate_size", None)
    if chosen:
        shared = getattr(text, "shared_expert_intermediate_size", None) or 0
        return chosen * (width or text.intermediate_size) + shared
    return getattr(text, "intermediate_size", None) or 4 * text.hidden_size


def _on_meta(config: Any, m: ModelConfig) -> nn.Module:
    try:
        with torch.device("meta"):
            model = model_class(config).from_config(config, trust_remote_code=m.trust_remote_code)
        model.tie_weights()
        return model
    except (ValueError, RuntimeError, NotImplementedError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(f"model.path: {m.path!r} cannot be sized without its weights: {first}") from error
