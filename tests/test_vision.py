"""Trees with images give the log-probs and gradients of one row per leaf, and each question is encoded once."""

import numpy as np
import pytest
import torch
import vision_families
from forests import Forest, gradient_error, gradients
from test_sharing import InFloat64
from vision_families import FAMILIES, picture

from branchwise.config import load_config
from branchwise.policy.load import load_policy
from branchwise.policy.pack import build_packs
from branchwise.policy.vision import cut
from branchwise.tree import Images, prompt_node

PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
TEMPERATURE = 0.7
PLAIN = 27
"""Ids below are of text."""


def policy_of(family, *, dtype=torch.float32, peft_config=None, **settings):
    model, processor = vision_families.build(family)
    return policy_with(model.to(dtype), processor, peft_config, **settings)


def policy_with(model, processor, peft_config=None, **settings):
    config = load_config(
        {
            "model": {"path": "given", **settings},
            "sampling": {"temperature": TEMPERATURE},
            "train": {"precision": "float32", "device": "cpu"},
        }
    )
    return load_policy(config, model=model, processing_class=processor, peft_config=peft_config)


class Gallery(Forest):
    """Trees whose questions have pictures; `rows` still are ids, `inputs` what the processor gave with them."""

    def __init__(self, processor, seed=0):
        super().__init__(seed)
        self.processor = processor
        self.given = []

    def _ids(self, count):
        return self.rng.integers(0, PLAIN, int(count))

    def hang(self, sizes, text="12+3=", **shape):
        """Plant a tree under a question with a picture of each size; its phrasings differ in their text."""
        self.plant(**shape)
        tree = self.trees[-1]
        pictures = [picture(self.rng.integers(1000), *size) for size in sizes]
        found = [self.render(pictures, text + "ab"[: n % 3]) for n in range(len(tree.phrasings()))]
        for n, inputs in enumerate(found):
            tree.nodes[n] = prompt_node(n, inputs["input_ids"][0].tolist())
        seen = {name: t for name, t in found[0].items() if name not in PER_TOKEN}
        tree.images = Images(seen) if seen else None
        self.given.append(found)
        return self

    def render(self, pictures, text):
        parts = [{"type": "text", "text": "a"}] * bool(pictures)
        for _ in pictures:
            parts += [{"type": "image"}, {"type": "text", "text": text[:2]}]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.processor(text=[text], images=pictures or None, add_special_tokens=False, return_tensors="pt")


def plain_logprobs(model, gallery):
    """log π of every sampled token, from the whole model on the processor's own output and a leaf's response."""
    found = {}
    leaves = {(t, leaf) for t, tree in enumerate(gallery.trees) for leaf in tree.leaves()}
    for t, place, path in gallery.nodes():
        if (t, place) not in leaves:
            continue
        nodes = gallery.trees[t].nodes
        inputs = dict(gallery.given[t][path[0]])
        prompt = inputs["input_ids"].shape[1]
        response = torch.cat([torch.as_tensor(nodes[p].ids_T) for p in path[1:]])[None]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], response], 1)
        for name in PER_TOKEN[1:]:
            if name in inputs:
                fill = torch.full_like(response, int(name == "attention_mask"))
                inputs[name] = torch.cat([inputs[name], fill], 1)
        logp = torch.log_softmax(model(**inputs, use_cache=False).logits[0] / TEMPERATURE, -1)
        start = prompt
        for p in path[1:]:
            at = torch.arange(start, start := start + len(nodes[p].ids_T))
            sampled = at[torch.as_tensor(nodes[p].sampled_T)]
            found.setdefault((t, p), logp[sampled - 1, inputs["input_ids"][0, sampled]])
    return [found[t, place] for t, place, _ in gallery.nodes()]


def plain_loss(model, gallery):
    scales = [
        float(np.float32(gallery.credits[t].weight[p])) * float(np.float32(gallery.credits[t].advantage[p]))
        for t, p, _ in gallery.nodes()
    ]
    return sum(s * logp.sum() for s, logp in zip(scales, plain_logprobs(model, gallery)))


def learn(policy, packs):
    """The gradients of the packs' losses, as the trainer takes them."""
    policy.model.zero_grad()
    for pack in packs:
        with policy.encoding(pack):
            logp_S, _ = policy.logprobs(pack)
            (logp_S * pack.scored.weight_S * pack.scored.advantage_S).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in policy.model.named_parameters()
        if p.requires_grad
    }


def packs_of(gallery, budget=10**6):
    return build_packs(gallery.trees, gallery.credits, budget=budget, device="cpu", prune=False)


def gallery_of(processor, seed=0):
    """Questions with one, no and two pictures, ragged, rephrased; one of them in several sizes."""
    return (
        Gallery(processor, seed)
        .hang([(24, 16)], N=1, K=2, M=2, unclosed=0.3, forced=0.3)
        .hang([], K=2, M=1)
        .hang([(16, 16), (40, 24)], N=2, K=2, M=0, thought=(1, 30))
        .hang([(16, 24)], N=1, K=1, M=2, answer=(1, 2), anchor="behaviour")
    )


def encoder(model):
    """The modules that see: hooks on them count how often."""
    inner = model.base_model
    return next(getattr(inner, name) for name in ("visual", "vision_model", "vision_tower") if hasattr(inner, name))


def pair(family, dtype=torch.float32):
    """Two models alike, and their processor."""
    return [vision_families.build(family)[0].to(dtype) for _ in range(2)], vision_families.build(family)[1]


def assert_equal_to_rows(models, processor, tolerance, budget=10**6):
    plain, policy = models[0], policy_with(models[1], processor)
    gallery = gallery_of(processor)
    packs = packs_of(gallery, budget)
    with torch.no_grad():
        given = torch.cat([policy.logprobs(pack)[0] for pack in packs])
        wanted = torch.cat(plain_logprobs(plain, gallery))
    torch.testing.assert_close(given, wanted.to(given.dtype), rtol=tolerance, atol=tolerance)
    assert policy.sharing.way == "blocks"
    assert gradient_error(learn(policy, packs), gradients(plain_loss(plain, gallery), plain)) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_every_gradient_equal_rows_in_float32(family):
    assert_equal_to_rows(*pair(family), 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_every_gradient_equal_rows_in_float64(family):
    models, processor = pair(family, torch.float64)
    with InFloat64():
        assert_equal_to_rows(models, processor, 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_split_over_packs_is_encoded_once(family):
    assert_equal_to_rows(*pair(family), 1e-5, budget=80)


@pytest.mark.parametrize("budget", [80, 10**6])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_is_called_once_a_question_forward_and_backward(family, budget):
    policy = policy_of(family)
    gallery = gallery_of(policy.processing_class)
    packs = packs_of(gallery, budget)
    assert (len(packs) > 4) == (budget == 80)
    forward, backward = [], []
    seeing = encoder(policy.model)
    seeing.register_forward_hook(lambda *_: forward.append(1))
    # its gradient is added once a backward through the encoder
    next(seeing.parameters()).register_post_accumulate_grad_hook(lambda *_: backward.append(1))
    learn(policy, packs)
    assert (len(forward), len(backward)) == (3, 3)
    with torch.no_grad():
        for pack in packs:
            with policy.encoding(pack):
                policy.logprobs(pack)
    assert len(forward) == 6 and not policy.inputs._held


def test_pieces_of_a_node_are_a_chain_and_children_hang_on_its_end():
    start_J, parent_J = cut(np.array([0, 9, 12]), np.array([-1, 0, 0]), np.array([3, 5]))
    assert start_J.tolist() == [0, 3, 5, 9, 12]
    assert parent_J.tolist() == [-1, 0, 1, 2, 2]
