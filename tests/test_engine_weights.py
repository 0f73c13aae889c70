"""Whose weights the in-process engine samples with, and when it takes new ones."""

import copy

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model

from branchwise.rollout.weights import SamplingWeights

CPU = torch.device("cpu")


def lora(model, seed=1, **settings):
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], **settings)
    model = get_peft_model(model, config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([[7, 8, 9, 10]])).logits


def change(model):
    """What an update does."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)


@pytest.mark.parametrize("wrap", [lambda model: model, lora], ids=["full", "lora"])
def test_a_policy_of_the_right_type_is_sampled_itself(wrap):
    policy = wrap(tiny.llama())
    weights = SamplingWeights(policy, torch.float32, CPU)
    change(policy)
    with weights.in_use() as model:
        assert torch.equal(logits(model), logits(policy.eval()))
    assert {id(p) for p in model.parameters()} == {id(p) for p in policy.parameters()}


@pytest.mark.parametrize("wrap", [lambda model: model, lora], ids=["full", "lora"])
def test_another_type_is_a_copy_that_sync_brings_up_to_date(wrap):
    policy = wrap(tiny.llama()).eval()
    weights = SamplingWeights(policy, torch.float64, CPU)
    before = logits(policy)
    frozen = copy.deepcopy(policy.state_dict())
    change(policy)
    with weights.in_use() as model:
        torch.testing.assert_close(logits(model).float(), before)
        weights.take(policy)
        torch.testing.assert_close(logits(model).float(), logits(policy))
        assert not torch.allclose(logits(policy), before)
    # the base under an adapter is as it was to the bit: nothing was merged into it and taken out again
    assert all(torch.equal(frozen[name], w) for name, w in policy.named_parameters() if not w.requires_grad)


def test_a_wholly_trained_module_beside_an_adapter_is_taken_too():
    policy = lora(tiny.llama(tie_word_embeddings=False), modules_to_save=["lm_head"]).eval()
    weights = SamplingWeights(policy, torch.float64, CPU)
    change(policy)
    weights.take(policy)
    torch.testing.assert_close(logits(weights.model).float(), logits(policy))


def test_a_tied_head_stays_tied():
    policy = tiny.llama(tie_word_embeddings=True)
    weights = SamplingWeights(policy, torch.float64, CPU)
    change(policy)
    weights.take(policy)
    assert weights.model.lm_head.weight is weights.model.model.embed_tokens.weight
    torch.testing.assert_close(logits(weights.model).float(), logits(policy))


def test_rotary_frequencies_are_not_rounded():
    policy = tiny.llama()
    model = SamplingWeights(policy, torch.bfloat16, CPU).model
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.model.rotary_emb.inv_freq, policy.model.rotary_emb.inv_freq)


def test_a_copy_has_no_gradients_and_leaves_the_policys():
    policy = tiny.llama()
    policy(torch.tensor([[7, 8]])).logits.sum().backward()
    model = SamplingWeights(policy, torch.bfloat16, CPU).model
    assert all(weight.grad is None and not weight.requires_grad for weight in model.parameters())
    assert all(weight.grad is not None and weight.requires_grad for weight in policy.parameters())


def test_another_models_weights_are_refused():
    weights = SamplingWeights(tiny.llama(), torch.float64, CPU)
    with pytest.raises(ValueError, match=r"not the sampler's: \['model.layers.2"):
        weights.take(tiny.llama(num_hidden_layers=3))
