"""Loading, scoring, the reference, and saving."""

import importlib.util
import math

import families
import peft
import pytest
import tiny
import torch
from families import build
from forests import Forest, gradient_error, gradients, packed_loss, plain_logprobs, plain_loss
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from branchwise.config import ConfigError, load_config
from branchwise.policy.load import load_policy
from branchwise.policy.output import Output, find_output
from branchwise.policy.pack import build_packs
from branchwise.policy.sharing import Sharing, rows_hidden

LORA = {"r": 4, "alpha": 8}


def policy_of(model=None, *, path="given", kl=0.0, precision="float32", peft_config=None, **settings):
    config = load_config(
        {
            "model": {"path": path, **settings},
            "algorithm": {"kl": kl},
            "train": {"precision": precision, "device": "cpu"},
        }
    )
    return load_policy(config, model=model, processing_class=model and tiny.tokenizer(), peft_config=peft_config)


def forest(seed=0):
    return Forest(seed).plant(N=1, K=2, M=2, unclosed=0.3).plant(K=2, M=0)


def pack_of(forest):
    (pack,) = build_packs(forest.trees, forest.credits, budget=10**6, device="cpu", prune=False)
    return pack


def disturb(policy, scale=0.1):
    """A step of training, as large as none would be."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in policy.trainable_parameters():
            p += scale * torch.randn_like(p)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def test_a_folder_becomes_a_policy(folder):
    policy, pack = policy_of(path=folder), pack_of(forest())
    logp_S, entropy_S = policy.logprobs(pack)
    assert logp_S.dtype == torch.float32 and entropy_S is None
    torch.testing.assert_close(logp_S, plain_logprobs(build("llama"), forest()), rtol=1e-5, atol=1e-5)
    assert all(p.requires_grad for p in policy.model.parameters())
    assert policy.tokenizer.pad_token_id == 0
    assert policy.sharing == Sharing("blocks", "")


def test_entropy_is_that_of_the_distribution_the_token_was_drawn_from():
    model = build("llama")
    policy, pack = policy_of(model), pack_of(forest())
    _, entropy_S = policy.logprobs(pack, entropy=True)
    ids_T, _ = next(forest().rows())
    prompt = len(forest().trees[0].nodes[0].ids_T)
    p_V = build("llama")(torch.as_tensor(ids_T)[None]).logits[0, prompt - 1].softmax(-1)
    torch.testing.assert_close(entropy_S[0], -(p_V * p_V.log()).sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_padded_beside_longer_ones_score_as_they_do_alone(family):
    """Missing masks or positions mispredict every row that is shorter than its neighbours, silently."""
    model, trees = build(family), Forest(2).plant(K=1, M=0, prompt=3, thought=(3, 4))
    trees.plant(K=1, M=0, prompt=40, thought=(30, 31))
    policy, pack = policy_of(model), pack_of(trees)
    policy.sharing = Sharing("rows", "")
    assert (pack.position_T[:5].tolist(), pack.position_T[5:8].tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2])
    torch.testing.assert_close(policy.logprobs(pack)[0], plain_logprobs(build(family), trees), rtol=1e-5, atol=1e-5)
    alone = model.get_decoder()(pack.ids_T[None, :5]).last_hidden_state[0]
    torch.testing.assert_close(rows_hidden(model.get_decoder(), pack)[:5], alone, rtol=1e-5, atol=1e-5)


# The reference


def test_the_reference_is_the_policy_as_it_was_loaded():
    policy, pack = policy_of(build("llama"), kl=0.1), pack_of(forest())
    before, _ = policy.logprobs(pack)
    disturb(policy)
    assert torch.equal(policy.reference_logprobs(pack), before)
    assert (policy.logprobs(pack)[0] - before).abs().max() > 0.01
    assert not policy.reference_logprobs(pack).requires_grad
    assert len(list(policy.trainable_parameters())) == len(list(policy.model.parameters()))


def test_no_reference_is_kept_where_none_was_asked_for():
    with pytest.raises(ValueError, match=r"set algorithm\.kl"):
        policy_of(build("llama")).reference_logprobs(pack_of(forest()))


def test_with_an_adapter_the_reference_is_the_model_without_it():
    policy, pack = policy_of(build("llama"), lora=LORA), pack_of(forest())
    before, _ = policy.logprobs(pack)
    disturb(policy)
    assert (policy.logprobs(pack)[0] - before).abs().max() > 0.01
    assert torch.equal(policy.reference_logprobs(pack), before.detach())
    assert (policy.logprobs(pack)[0] - before).abs().max() > 0.01


# Adapters


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_an_adapter_equal_rows(checkpointing):
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.5, task_type="CAUSAL_LM")
    policy = policy_of(build("qwen3"), peft_config=config, gradient_checkpointing=checkpointing)
    plain = peft.get_peft_model(build("qwen3"), config).eval()
    disturb(policy)
    plain.load_state_dict(policy.model.state_dict())
    given = gradients(packed_loss(policy, [pack_of(forest())]), policy.model)
    wanted = gradients(plain_loss(plain, forest()), plain)
    assert given and all("lora" in name for name in given)
    assert gradient_error(given, wanted) < 1e-5


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_frozen_weights_are_held_as_they_are_computed_with_and_trained_ones_in_float32(folder, precision):
    assert policy_of(path=folder).model.dtype == torch.float32
    assert policy_of(path=folder, dtype="bfloat16").model.dtype == torch.bfloat16
    adapted = policy_of(path=folder, lora=LORA, precision=precision)
    assert {p.dtype for p in adapted.model.parameters() if not p.requires_grad} == {getattr(torch, precision)}
    assert {p.dtype for p in adapted.trainable_parameters()} == {torch.float32}


def test_an_adapter_that_lengthens_prompts_is_refused():
    with pytest.raises(ConfigError, match=r"peft_config: .*PROMPT_TUNING adds tokens .* use a LoraConfig"):
        policy_of(build("llama"), peft_config=peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_four_bits_without_bitsandbytes_say_what_to_install(folder):
    with pytest.raises(ConfigError, match=r"model\.load_in_4bit: .*pip install 'branchwise\[quantized\]'"):
        policy_of(path=folder, load_in_4bit=True, lora=LORA)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_four_bits_without_a_gpu_are_refused(folder):
    with pytest.raises(ConfigError, match=r"model\.load_in_4bit: true needs a CUDA GPU, not cpu"):
        policy_of(path=folder, load_in_4bit=True, lora=LORA)


# Precision and chance


def test_under_autocast_logprobs_stay_near_float32():
    trees = forest()
    policy, pack = policy_of(build("llama"), precision="bfloat16"), pack_of(trees)
    logp_S, _ = policy.logprobs(pack)
    assert logp_S.dtype == torch.float32
    difference = (logp_S - plain_logprobs(build("llama"), trees)).abs()
    assert 1e-5 < difference.mean() < 0.05
    given, wanted = gradients(packed_loss(policy, [pack]), policy.model), build("llama")
    wanted = gradients(plain_loss(wanted, trees), wanted)
    error, whole = (math.hypot(*(float(v) for v in values)) for values in (
        [(given[n] - g).norm() for n, g in wanted.items()], [g.norm() for g in wanted.values()]))  # fmt: skip
    assert error < 0.05 * whole


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off(checkpointing):
    noisy = {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}
    policy, pack = policy_of(build("gpt2", **noisy), gradient_checkpointing=checkpointing), pack_of(forest())
    torch.testing.assert_close(policy.logprobs(pack)[0], plain_logprobs(build("gpt2"), forest()), rtol=1e-5, atol=1e-5)
    noisy = build("llama", attention_dropout=0.5)
    policy = policy_of(noisy, gradient_checkpointing=checkpointing)
    assert torch.equal(policy.logprobs(pack)[0], policy.logprobs(pack)[0])


# Logits


@pytest.mark.parametrize(
    "family, output",
    [
        ("llama", Output()),
        ("gemma2", Output(softcap=2.0)),
        ("cohere", Output(scale=0.25)),
        ("granite", Output(scale=0.125)),
    ],
)
def test_scales_and_softcaps_of_logits_are_found(family, output):
    assert find_output(build(family)) == output
    assert find_output(build(family).bfloat16()) == output


class Crooked(LlamaForCausalLM):
    """Logits as no config tells."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits + 0.3 * out.logits.sin()
        return out


def test_logits_of_any_other_make_come_from_the_models_own_forward():
    trees = forest()
    model, plain = (Crooked(LlamaConfig(**families.FAMILIES["llama"])).eval() for _ in range(2))
    plain.load_state_dict(model.state_dict())
    policy, pack = policy_of(model), pack_of(trees)
    policy.chunk = 7
    assert policy.output == Output(whole=True)
    torch.testing.assert_close(policy.logprobs(pack)[0], plain_logprobs(plain, trees), rtol=1e-5, atol=1e-5)
    given, wanted = gradients(packed_loss(policy, [pack]), model), gradients(plain_loss(plain, trees), plain)
    assert gradient_error(given, wanted) < 1e-5


# On disk


def test_a_saved_policy_loads_through_transformers(tmp_path):
    policy, pack = policy_of(build("qwen3")), pack_of(forest())
    disturb(policy)
    policy.model.generation_config.update(do_sample=True, temperature=0.7)
    policy.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(plain_logprobs(loaded, forest()), policy.logprobs(pack)[0], rtol=1e-5, atol=1e-5)
    assert loaded.config._attn_implementation == "sdpa" and loaded.dtype == torch.float32
    assert loaded.generation_config.temperature == 0.7
    assert AutoTokenizer.from_pretrained(tmp_path)("1+1").input_ids == tiny.tokenizer()("1+1").input_ids


def test_a_saved_adapter_is_merged_and_stands_beside(tmp_path):
    policy, pack = policy_of(build("qwen3"), lora=LORA), pack_of(forest())
    disturb(policy)
    wanted, _ = policy.logprobs(pack)
    policy.save(tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(plain_logprobs(merged, forest()), wanted, rtol=1e-4, atol=1e-4)
    beside = peft.PeftModel.from_pretrained(build("qwen3"), tmp_path / "adapter")
    torch.testing.assert_close(plain_logprobs(beside, forest()), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(policy.logprobs(pack)[0], wanted)


def test_it_says_how_it_runs():
    assert policy_of(build("llama")).describe().endswith("on cpu; prefixes shared by blocks")
    said = policy_of(build("lfm2")).describe()
    assert "NOT shared" in said and "states differ" in said
