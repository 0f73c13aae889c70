"""Shared prefixes give the log-probs and gradients of one row per leaf, on every family, or are not used."""

from dataclasses import replace

import families
import pytest
import tiny
import torch
from families import FAMILIES, WAY
from forests import Forest, gradient_error, gradients, packed_loss, plain_logprobs, plain_loss
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from branchwise.config import load_config
from branchwise.policy import attention, sharing
from branchwise.policy.load import load_policy
from branchwise.policy.pack import build_packs
from branchwise.policy.sharing import Sharing, choose_sharing, shared_hidden


class InFloat64(TorchFunctionMode):
    """Lifts the casts to float32 within models (norms, softmax, routers), and all that was made in float32."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            return args[0].double()
        return function(*tree_map(_lift, args), **tree_map(_lift, kwargs or {}))


def _lift(value):
    if isinstance(value, torch.dtype):
        return torch.float64 if value is torch.float32 else value
    return value.double() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value


def policy_of(model, **settings):
    config = load_config(
        {
            "model": {"path": "given", **settings},
            "sampling": {"temperature": 0.7},
            "train": {"precision": "float32", "device": "cpu"},
        }
    )
    return load_policy(config, model=model, processing_class=tiny.tokenizer())


def whole(forest, prune=False):
    return build_packs(forest.trees, forest.credits, budget=10**6, device="cpu", prune=prune)


def mixed_forest(seed=0, longest=70):
    """Two questions whose prompts begin alike, ragged, rephrased; thoughts unclosed and forced, answers of one token.

    Longer than a tile of attention, so that every kind of block occurs.
    """
    begin = list(range(3, 40))
    return (
        Forest(seed)
        .plant(N=1, K=2, M=2, begin=begin, unclosed=0.3, forced=0.3, thought=(3, longest))
        .plant(N=0, K=2, M=0, begin=begin, thought=(1, longest))
        .plant(N=1, K=1, M=2, prompt=2, answer=(1, 2), anchor="behaviour")
    )


def assert_equal_to_rows(model, plain, forest, tolerance):
    policy = policy_of(model)
    (pack,) = whole(forest)
    with torch.no_grad():
        given, wanted = policy.logprobs(pack)[0], plain_logprobs(plain, forest, 0.7)
    torch.testing.assert_close(given, wanted, rtol=tolerance, atol=tolerance)
    given = gradients(packed_loss(policy, [pack]), model)
    wanted = gradients(plain_loss(plain, forest, 0.7), plain)
    assert policy.sharing.way == WAY.get(model.config.model_type, "blocks")
    assert gradient_error(given, wanted) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_shares_as_far_as_is_exact_for_it(family):
    found = choose_sharing(families.build(family))
    assert found.way == WAY.get(family, "blocks")
    assert bool(found.reason) == (found.way != "blocks")


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_every_gradient_equal_rows_in_float32(family):
    forest = mixed_forest(longest=20 if WAY.get(family) == "rows" else 70)
    assert_equal_to_rows(families.build(family), families.build(family), forest, 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_every_gradient_equal_rows_in_float64(family):
    forest = mixed_forest(1, longest=20 if WAY.get(family) == "rows" else 70)
    models = [families.build(family).double() for _ in range(2)]
    with InFloat64():
        assert_equal_to_rows(*models, forest, 1e-10)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "gemma2", "qwen3_moe", "mamba"])
def test_gradient_checkpointing_changes_nothing(family):
    forest, plain, model = mixed_forest(2, longest=20), families.build(family), families.build(family)
    policy = policy_of(model, gradient_checkpointing=True)
    calls = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_: calls.append(1))
    loss = packed_loss(policy, whole(forest))
    forwarded = len(calls)
    given = gradients(loss, model)
    assert len(calls) > 1.25 * forwarded  # all layers but the last ran again in the backward
    assert policy.sharing.way == WAY.get(family, "blocks")
    assert gradient_error(given, gradients(plain_loss(plain, forest, 0.7), plain)) < 1e-5


SHAPES = {
    "one response": {"K": 1, "M": 0},
    "one thought, one answer": {"K": 1, "M": 1},
    "responses of one token": {"K": 3, "M": 0, "thought": (1, 2)},
    "answers of one token": {"K": 2, "M": 3, "answer": (1, 2)},
    "long and thin": {"K": 1, "M": 1, "thought": (200, 201), "answer": (90, 91)},
    "short and wide": {"K": 6, "M": 4, "thought": (1, 4), "answer": (1, 4)},
    "all unclosed": {"K": 3, "M": 2, "unclosed": 1.0},
    "joint": {"K": 3, "M": 1, "joint": True},
    "rephrased": {"N": 2, "K": 2, "M": 2},
    "rephrased, each on its own": {"N": 2, "K": 2, "M": 2, "anchor": "behaviour"},
    "a prompt of one token": {"K": 2, "M": 1, "prompt": 1},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gpt2"])
def test_trees_of_every_shape_equal_rows(family, shape):
    assert_equal_to_rows(families.build(family), families.build(family), Forest(3).plant(**shape), 1e-5)


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma3_text", "gemma2", "gpt_oss"])
def test_windows_bind_in_these_tests(family):
    forest, wide = mixed_forest(longest=20), families.build(family, sliding_window=1000)
    difference = plain_logprobs(families.build(family), forest) - plain_logprobs(wide, forest)
    assert difference.abs().max() > 1e-2


def test_the_gradient_is_the_same_for_every_split_into_packs():
    forest = mixed_forest(4, longest=30)
    model = families.build("llama")
    policy = policy_of(model)
    whole_gradients = gradients(packed_loss(policy, whole(forest)), model)
    for budget in (1, 60, 150):
        packs = build_packs(forest.trees, forest.credits, budget=budget, device="cpu", prune=False)
        assert len(packs) > 1
        assert gradient_error(gradients(packed_loss(policy, packs), model), whole_gradients) < 1e-5


def test_a_subtree_never_forwarded_changes_no_gradient():
    forest = mixed_forest(5, longest=20)
    for credit in forest.credits:
        credit.advantage = [0.0 if forest.rng.random() < 0.6 else A for A in credit.advantage]
    model = families.build("llama")
    policy = policy_of(model)
    (kept,), (pruned,) = whole(forest), whole(forest, prune=True)
    assert len(pruned.ids_T) < len(kept.ids_T)
    given, wanted = (gradients(packed_loss(policy, [pack]), model) for pack in (pruned, kept))
    assert gradient_error(given, wanted) < 1e-5


def test_nothing_leaks_between_branches():
    forest = mixed_forest(6)
    policy = policy_of(families.build("qwen3"))
    (pack,) = whole(forest)
    before, _ = policy.logprobs(pack)
    leaf = int(pack.start_J[-1])
    pack.ids_T[leaf:] = (pack.ids_T[leaf:] + 1) % 64
    after, _ = policy.logprobs(pack)
    untouched = pack.source_S < leaf
    assert torch.equal(before[untouched], after[untouched]) and not torch.equal(before, after)


@pytest.mark.parametrize("way", ["flex", "blocks", "dense", "eager", "rows"])
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma3_text"])
def test_every_way_gives_the_same_logprobs(family, way, monkeypatch):
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)  # its reference: kernels need a GPU
    forest, model = mixed_forest(7), families.build(family)
    policy = policy_of(model)
    policy.sharing = Sharing(way, "")
    monkeypatch.setattr(sharing, "MASKED", 100)  # less than the pack, so that it goes in parts
    model.set_attn_implementation("sdpa" if way == "rows" else f"branchwise_{way}")
    with torch.no_grad():
        given, _ = policy.logprobs(*whole(forest))
    torch.testing.assert_close(given, plain_logprobs(families.build(family), forest, 0.7), rtol=1e-5, atol=1e-5)


def _windowless(mask):
    return lambda *args, mask_function, **kwargs: mask(*args, mask_function=causal_mask_function, **kwargs)


def _boolean(mask):
    return lambda *args, **kwargs: mask(*args, **kwargs) == 0


@pytest.mark.parametrize(
    "family, way, fault",
    [
        ("mistral", "blocks", _windowless),
        ("mistral", "dense", _windowless),
        ("gemma3_text", "blocks", _windowless),
        ("gemma2", "eager", _windowless),
        ("gemma2", "eager", _boolean),
        ("gpt_oss", "eager", _boolean),
    ],
)
def test_a_wrong_mask_is_noticed(family, way, fault, monkeypatch):
    monkeypatch.setattr(sharing, "WAYS", (way,))
    assert choose_sharing(families.build(family)).way == way
    masks, name = AttentionMaskInterface._global_mapping, f"branchwise_{way}"
    monkeypatch.setitem(masks, name, fault(masks[name]))
    found = choose_sharing(families.build(family))
    assert found.way == "rows" and found.reason.startswith(f"{way}: states differ")


@pytest.mark.parametrize("family, way", [("llama", "blocks"), ("llama", "dense"), ("gpt_oss", "eager")])
def test_a_branch_that_sees_its_neighbours_is_noticed(family, way, monkeypatch):
    monkeypatch.setattr(sharing, "WAYS", (way,))
    monkeypatch.setattr(attention.Layout, "tail_T", property(lambda layout: torch.full_like(layout.position_T, 10**6)))
    assert choose_sharing(families.build(family)).way == "rows"


def test_wrong_positions_are_noticed(monkeypatch):
    def along_the_row(backbone, row, **layout):
        return shared_hidden(backbone, replace(row, position_T=torch.arange(len(row.ids_T))), **layout)

    monkeypatch.setattr(sharing, "shared_hidden", along_the_row)
    assert choose_sharing(families.build("gpt2")).way == "rows"
    assert choose_sharing(families.build("llama")).way == "rows"


def test_a_wrong_backward_is_noticed(monkeypatch):
    def unmerged(grad, q, k, v, out, lse, *args, **kwargs):
        return backward(grad, q, k, v, out, lse + 0.01, *args, **kwargs)

    backward = attention._flash_backward
    monkeypatch.setattr(attention, "_flash_backward", unmerged)
    found = choose_sharing(families.build("llama"))
    assert found.way == "dense" and found.reason.startswith("blocks: gradients differ")


def test_without_the_flash_operator_a_mask_shares(monkeypatch):
    def missing(*args, **kwargs):
        raise AttributeError("no such operator")

    monkeypatch.setattr(attention, "_flash", missing)
    found = choose_sharing(families.build("llama"))
    assert (found.way, found.reason) == ("dense", "blocks: AttributeError: no such operator")


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_the_check_is_as_sharp_for_weights_in_bfloat16(family):
    assert choose_sharing(families.build(family).bfloat16()).way == WAY.get(family, "blocks")


class Narrow(torch.nn.Linear):
    """Holds float32 but computes in bfloat16, as layers of 4-bit weights do."""

    def forward(self, x):
        return torch.nn.functional.linear(x.to(torch.bfloat16), self.weight.to(torch.bfloat16)).to(x.dtype)


def test_layers_that_compute_in_less_than_the_model_holds_do_not_look_inexact():
    model = families.build("llama")
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Narrow
    assert choose_sharing(model).way == "rows"  # by the rounding alone
    model.is_quantized = True
    assert choose_sharing(model).way == "blocks"


def test_windows_are_as_they_were_after_the_check():
    model = families.build("gemma3_text")
    choose_sharing(model)
    assert model.config.sliding_window == 5


def test_a_model_that_shares_still_generates_as_before():
    plain, model = families.build("qwen3"), families.build("qwen3")
    choose_sharing(model)
    assert model.config._attn_implementation == "branchwise_blocks"
    prompts = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 8]])
    settings = {"attention_mask": (prompts > 0).long(), "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(prompts, **settings), plain.generate(prompts, **settings))


def test_bfloat16_blocks_are_as_near_to_float32_as_plain_attention():
    torch.manual_seed(0)
    (pack,) = whole(mixed_forest())
    q, k, v = (torch.randn(1, heads, len(pack.ids_T), 8) for heads in (4, 2, 2))
    layout = attention.Layout(pack)
    mask = attention._dense_mask(layout, causal_mask_function, torch.float32)

    def shared(dtype):
        x = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = attention._MergedBlocks.apply(*x, None, layout.blocks)
        return [out, *torch.autograd.grad(out.float().square().sum(), x)]

    def plain(dtype):
        x = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=mask.to(dtype), enable_gqa=True)
        return [out.transpose(1, 2), *torch.autograd.grad(out.float().square().sum(), x)]

    exact = plain(torch.float64)
    for given, wanted in zip(shared(torch.float32), exact):
        assert (given - wanted).norm() < 1e-6 * wanted.norm()
    for given, wanted, rounded in zip(shared(torch.bfloat16), exact, plain(torch.bfloat16)):
        assert (given - wanted).norm() < 1.5 * (rounded - wanted).norm()
