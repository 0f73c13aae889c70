"""Tiny random models of many families; windows and chunks of five tokens bind on every path of the tests."""

import torch
from forests import VOCABULARY
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

BODY = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = ["sliding_attention", "full_attention"]
OLD = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}

FAMILIES = {
    "llama": BODY,
    "qwen2": BODY,
    "qwen3": BODY | {"head_dim": 8},
    "smollm3": BODY,
    "olmo2": BODY,
    "gpt2": OLD | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gpt_neox": {key: value for key, value in BODY.items() if key != "num_key_value_heads"},
    "mistral": BODY | {"head_dim": 8, "sliding_window": 5},
    "phi3": BODY | {"sliding_window": 5},
    "gemma3_text": BODY | {"head_dim": 8, "sliding_window": 5, "layer_types": MIXED},
    "qwen3_moe": BODY | {"head_dim": 8} | EXPERTS,
    "cohere": BODY | {"logit_scale": 0.25},
    "granite": BODY | {"logits_scaling": 8.0},
    "gemma2": BODY
    | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5, "layer_types": MIXED}
    | {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0},
    "gpt_oss": BODY | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    "mamba": OLD | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "lfm2": BODY | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": BODY
    | {"head_dim": 8, "shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    | EXPERTS,
}
"""By transformers' model type."""

WAY = {"gemma2": "eager", "gpt_oss": "eager", "mamba": "rows", "lfm2": "rows", "qwen3_next": "rows"}
"""How a family shares on a CPU; the others by blocks."""


def build(family: str, seed: int = 0, **changes):
    """A model whose attention matters: weights are four times as large as usual."""
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[family](**FAMILIES[family] | {"initializer_range": 0.08} | changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_experts_implementation("eager")  # the grouped kernel knows no float64
    return model
