"""The policy's weights as checkpoints name them, adapters merged, and what rounding leaves of a merge."""

import copy

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from branchwise.rollout import export


def lora(model, size=0.2, **settings):
    torch.manual_seed(1)
    settings = {"target_modules": "all-linear"} | settings
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **settings)).eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=size)
    return model


def test_a_tied_head_stands_under_both_names():
    model = tiny.llama(tie_word_embeddings=True)
    weights = export.full_weights(model, torch.float32)
    assert weights.keys() == model.state_dict().keys()
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=["plain", "dora", "saved whole"]
)
def test_merged_as_peft_merges_and_the_policy_untouched(settings):
    policy = lora(tiny.llama(), **settings)
    before = copy.deepcopy(policy.state_dict())
    weights = export.full_weights(policy, torch.float32)
    expected = copy.deepcopy(policy).merge_and_unload().state_dict()
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-6)
    assert all(torch.equal(before[name], weight) for name, weight in policy.state_dict().items())


def test_base_weights_are_the_base_models():
    base = tiny.llama()
    expected = copy.deepcopy(base.state_dict())
    weights = export.base_weights(lora(base))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_fused_experts_are_split():
    shape = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=32, num_experts=3, num_experts_per_tok=2, **shape, **heads))
    weights = export.full_weights(model, torch.float32)
    for part, size in (("gate_proj", (16, 32)), ("up_proj", (16, 32)), ("down_proj", (32, 16))):
        assert weights[f"model.layers.0.mlp.experts.2.{part}.weight"].shape == size


@pytest.mark.parametrize(("delta", "share"), [(1e-3, 1.0), (1e-2, 0.0), (0.0, 0.0)])
def test_rounding_is_counted(delta, share):
    # between 1 and 2 bfloat16 has steps of 2^-7: 1 + 0.001 rounds to 1, 1 + 0.01 to 1.0078
    policy = lora(tiny.llama().to(torch.bfloat16), target_modules=["q_proj"])
    for name, weight in policy.named_parameters():
        if "q_proj.base_layer" in name:
            weight.data.fill_(1.0)
        elif "lora_" in name:
            # B·A·(alpha/r) = 4 · a · b · 2
            weight.data.fill_(1.0 if "lora_A" in name else delta / 8)
    rounding = export.Rounding()
    export.full_weights(policy, torch.bfloat16, rounding)
    assert rounding.share == share and rounding.touched == (2 * 32 * 32 if delta else 0)
    rounding = export.Rounding()
    export.full_weights(policy, torch.float32, rounding)
    assert rounding.share == 0


def test_an_adapter_that_vllm_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"engine\.lora: merge"):
        export.adapter(lora(tiny.llama(), use_dora=True))
    tensors, config = export.adapter(lora(tiny.llama()))
    assert all(name.startswith("base_model.model.") and ".default." not in name for name in tensors)
    assert config["r"] == 4 and config["lora_alpha"] == 8


def test_saved_weights_load_as_a_checkpoint(tmp_path):
    from safetensors.torch import load_file

    model = tiny.llama(tie_word_embeddings=True)
    export.save_full(model, tmp_path, torch.float32)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.state_dict().items())
