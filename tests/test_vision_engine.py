"""The in-process engine with images: the log-probs of what it draws are the whole model's own."""

import numpy as np
import pytest
import torch
import vision_families
from test_vision import PER_TOKEN, encoder
from vision_families import FAMILIES, picture

from branchwise.config import load_config
from branchwise.data.images import Picture
from branchwise.data.prompt import Renderer
from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.transformers import TransformersEngine
from branchwise.tree import Question

SAMPLING = Sampling(seed=3, temperature=0.8, max_thought_tokens=14, max_answer_tokens=9)
CONFIG = load_config({"model": {"path": "given"}})


def shown(*sizes):
    images = [picture(seed, *size) for seed, size in enumerate(sizes)]
    return tuple(Picture(image, image.size, image.size) for image in images)


def question(id, images, *texts):
    parts = [{"type": "image"} for _ in images]
    prompts = tuple([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}] for text in texts)
    return Question(id, prompts, {}, images)


QUESTIONS = [
    question("two", shown((24, 16), (16, 16)), "1+2=", "what is 1+2"),
    question("none", (), "3+4="),
    question("one", shown((40, 24)), "1+2=", "5"),
    question("another", shown((16, 40)), "1+2="),
]


def grown(model, processor, sampling=SAMPLING, max_rows=64):
    renderer = Renderer.of(processor, CONFIG)
    trees = [renderer.seedling(q, draw=i, step=2) for i, q in enumerate(QUESTIONS)]
    engine = TransformersEngine(model, processor, dtype=model.dtype, device="cpu", max_rows=max_rows)
    engine.grow([Limb(t, place, 3, 2) for t in trees for place in t.phrasings()], sampling)
    return trees, engine


def expected(model, processor, tree, place):
    """A node's log-probs from the whole model on the processor's output, without cache."""
    path = tree.path(place)
    text = Renderer.of(processor, CONFIG).text(tree.question.phrasings[tree.nodes[path[0]].index])
    images = [p.image() for p in tree.question.images]
    inputs = dict(processor(text=[text], images=images or None, add_special_tokens=False, return_tensors="pt"))
    np.testing.assert_array_equal(inputs["input_ids"][0], tree.nodes[path[0]].ids_T)
    response = torch.from_numpy(np.concatenate([tree.nodes[p].ids_T for p in path[1:]]))[None]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], response], 1)
    for name in PER_TOKEN[1:]:
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.full_like(response, int(name == "attention_mask"))], 1)
    own = len(tree.nodes[place].ids_T)
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, -own - 1 : -1]
    return (logits / SAMPLING.temperature).log_softmax(-1).gather(1, inputs["input_ids"][0, -own:, None])[:, 0]


@pytest.mark.parametrize("max_rows", [64, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_whole_model(family, max_rows):
    model, processor = vision_families.build(family)
    calls = []
    encoder(model).register_forward_hook(lambda *_: calls.append(1))
    trees, engine = grown(model, processor, max_rows=max_rows)
    assert len(calls) == 3  # the questions with images
    placeholder, scored = model.config.image_token_id, 0
    for tree in trees:
        for place, node in enumerate(tree.nodes):
            ids = np.concatenate([tree.nodes[p].ids_T for p in tree.path(place)[1:]] or [[]])
            if node.parent >= 0 and placeholder not in ids:
                np.testing.assert_allclose(
                    node.logprobs_T, expected(model, processor, tree, place), rtol=1e-5, atol=1e-5
                )
                scored += 1
    drawn = sum(int((n.ids_T == placeholder).sum()) for t in trees for n in t.nodes if n.parent >= 0)
    assert scored > 12 and engine.metrics() == {"sampled_image_placeholders": drawn}
    assert engine.metrics() == {"sampled_image_placeholders": 0}


def test_equal_ids_with_other_images_are_other_prompts():
    model, processor = vision_families.build("llava")
    trees, _ = grown(model, processor)
    first, second = trees[2], trees[3]
    assert np.array_equal(first.nodes[0].ids_T, second.nodes[0].ids_T)
    assert not np.allclose(
        expected(model, processor, first, 2)[:1].exp(), expected(model, processor, second, 1)[:1].exp(), atol=1e-4
    )


def test_after_a_sync_images_are_encoded_anew():
    model, processor = vision_families.build("llava")
    trees, engine = grown(model, processor)
    calls = []
    encoder(model).register_forward_hook(lambda *_: calls.append(1))
    again = [Limb(trees[2], 0, 1, 1)]
    engine.grow(again, SAMPLING)
    assert calls == []
    engine.sync(model)
    engine.grow(again, SAMPLING)
    assert calls == [1]
