"""The real vLLM in process: the policy's weights, its log-probs, its markers."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import short_runs
import tiny
import torch
import vllm_cases as cases
from transformers import AutoModelForCausalLM, AutoTokenizer

from branchwise import Trainer
from branchwise.config_engine import VllmConfig
from branchwise.rollout.engine import Sampling
from branchwise.rollout.transformers import TransformersEngine

pytestmark = pytest.mark.vllm
WAYS = ("full", "adapter", "merge")


@pytest.fixture
def engine():
    from branchwise.rollout.vllm import VllmEngine

    made = []

    def engine(policy, tokenizer=None, way="adapter", dtype=torch.float32, stop=(1,), positions=512):
        settings = VllmConfig(eager=True, lora="merge" if way == "merge" else "adapter")
        tokenizer = tokenizer or tiny.tokenizer()
        common = {"settings": settings, "dtype": dtype, "positions": positions, "max_rows": 64, "kv_bytes": 2e8}
        made.append(VllmEngine(policy, tokenizer, stop=frozenset(stop), **common))
        return made[-1]

    yield engine
    for e in made:
        e.close()


def policy_for(way):
    model = cases.llama()
    return model if way == "full" else cases.lora(model)


def vllm_logprobs(engine, ids, beside=True):
    """Log-probs of given tokens, at temperature 1."""
    from vllm import SamplingParams

    params = SamplingParams(prompt_logprobs=0, max_tokens=1)
    request = {"prompt_token_ids": list(ids)}
    output = engine.llm.generate([request], params, use_tqdm=False, lora_request=engine._lora if beside else None)[0]
    return np.array([entry[i].logprob for entry, i in zip(output.prompt_logprobs[1:], ids[1:])])


@pytest.mark.parametrize("way", WAYS)
def test_twenty_updates_in_a_row(engine, way):
    policy = policy_for(way)
    base = {k: v.clone() for k, v in policy.state_dict().items() if "lora_" not in k}
    e = engine(policy, way=way)
    first = cases.fixed_logprobs(policy)
    for _ in range(20):
        cases.updated(policy)
        e.sync(policy)
        np.testing.assert_allclose(vllm_logprobs(e, cases.FIXED), cases.fixed_logprobs(policy), atol=1e-3)
        assert cases.mismatch(policy, cases.grown(e)) < 1e-3
    assert np.abs(cases.fixed_logprobs(policy) - first).max() > 0.1  # the updates are no trifles
    if way != "full":
        assert all(torch.equal(value, policy.state_dict()[key]) for key, value in base.items())
    if way == "adapter":
        with policy.disable_adapter():
            np.testing.assert_allclose(
                vllm_logprobs(e, cases.FIXED, beside=False), cases.fixed_logprobs(policy), atol=1e-4
            )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["full", "adapter"])
def test_twenty_updates_of_a_real_model(engine, smollm2, way):
    policy = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    policy = policy if way == "full" else cases.lora(policy)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer("<think>3 + 4 = 7</think>\\boxed{7}")["input_ids"]
    e = engine(policy, tokenizer, way, stop=(tokenizer.eos_token_id,))
    first = cases.fixed_logprobs(policy, ids)
    for _ in range(20):
        cases.updated(policy, 3e-4 if way == "full" else 5e-3)
        e.sync(policy)
        np.testing.assert_allclose(vllm_logprobs(e, ids), cases.fixed_logprobs(policy, ids), atol=1e-3)
    assert np.abs(cases.fixed_logprobs(policy, ids) - first).max() > 0.05


def test_the_same_seed_repeats_exactly(engine):
    policy = cases.llama()
    one, two = engine(policy), engine(policy)
    trees = cases.contents(cases.grown(one))
    assert cases.contents(cases.grown(two)) == trees
    one.sync(policy)
    assert cases.contents(cases.grown(one)) == trees
    assert cases.contents(cases.grown(one, replace(cases.SAMPLING, seed=4))) != trees


def test_further_thoughts_of_a_phrasing_are_other_ones(engine):
    e = engine(cases.llama())
    trees = cases.grown(e, thoughts=2)
    cases.grown(e, thoughts=2, trees=trees)
    for tree in trees:
        assert [tree.nodes[i].index for i in tree.children[0]] == [0, 1, 2, 3]
    both = cases.grown(e, thoughts=4)
    ids = [[tree.nodes[i].ids_T.tolist() for i in tree.children[0]] for tree in (*trees, *both)]
    assert ids[: len(trees)] == ids[len(trees) :]


def test_both_engines_agree_on_the_same_ids_and_in_distribution(engine):
    policy = cases.llama()
    e = engine(policy)
    own = TransformersEngine(policy, tiny.tokenizer(), dtype=torch.float32, device="cpu", max_rows=256)
    sampling = Sampling(seed=5, max_thought_tokens=14, max_answer_tokens=9)
    rewards = []
    for sampler in (own, e):
        trees = cases.grown(sampler, sampling, thoughts=100, answers=2)
        for tree in trees[:2]:
            for leaf in list(tree.leaves())[:10]:
                ids = np.concatenate([tree.nodes[i].ids_T for i in tree.path(leaf)]).tolist()
                logprobs = np.concatenate([tree.nodes[i].logprobs_T for i in tree.path(leaf)[1:]])
                np.testing.assert_allclose(vllm_logprobs(e, ids)[-len(logprobs) :], logprobs, atol=1e-3)
        # one leaf a thought, so that rewards are independent: length, and how often the letter a was drawn
        leaves = [tree.nodes[i].ids_T for tree in trees for i in tree.children[0]]
        rewards.append([[len(ids), (ids == 21).mean()] for ids in leaves])
    one, two = (np.array(r, dtype=float) for r in rewards)
    error = np.sqrt(one.var(0) / len(one) + two.var(0) / len(two))
    assert (np.abs(one.mean(0) - two.mean(0)) < 4 * error).all()


@pytest.mark.parametrize(
    ("thoughts", "answers", "limits", "prompt"),
    [(1, 1, (14, 9), 4), (3, 2, (14, 1), 4), (8, 4, (1, 1), 4), (2, 2, (14, 9), 400)],
    ids=["one path", "answers of one token", "all rows finish at once", "a long prompt"],
)
def test_edges(engine, thoughts, answers, limits, prompt):
    policy = cases.llama()
    sampling = Sampling(seed=1, temperature=0.8, max_thought_tokens=limits[0], max_answer_tokens=limits[1])
    trees = cases.forest([[7 + i % 15 for i in range(prompt)]] * 3)
    cases.grown(engine(policy), sampling, thoughts, answers, trees)
    for tree in trees:
        assert len(tree.children[0]) == thoughts
        for place in tree.children[0]:
            assert len(tree.children[place]) == (answers if tree.nodes[place].finish == "marker" else 0)
            assert all(1 <= len(tree.nodes[leaf].ids_T) <= limits[1] for leaf in tree.children[place])
    assert cases.mismatch(policy, trees) < 1e-3


def test_more_prompt_tokens_than_go_through_at_once(engine):
    """A prompt cut in two by vLLM's scheduler would be drawn from in between, and its generator set back."""
    policy = cases.llama()
    trees = cases.forest([[7 + (i * q + q) % 15 for i in range(400)] for q in range(1, 25)])
    cases.grown(engine(policy), thoughts=1, answers=1, trees=trees)
    assert all(len(tree.children[0]) == 1 for tree in trees)
    assert cases.mismatch(policy, trees) < 1e-3


def test_a_thought_that_never_closes(engine):
    e = engine(cases.llama())
    sampling = Sampling(seed=1, marker="+-=+-=+-=", max_thought_tokens=10, max_answer_tokens=3)
    for tree in cases.grown(e, sampling, thoughts=4):
        assert {tree.nodes[i].finish for i in tree.children[0]} <= {"stop", "length"}
        assert all(tree.nodes[i].unclosed and not tree.children[i] for i in tree.children[0])


def test_a_marker_closed_by_force(engine):
    policy = cases.llama()
    sampling = Sampling(seed=1, marker="+-=", max_thought_tokens=6, max_answer_tokens=3, force_close=True)
    trees = cases.grown(engine(policy), sampling, thoughts=4)
    ids = tiny.tokenizer().encode("+-=", add_special_tokens=False)
    for tree in trees:
        for place in tree.children[0]:
            node = tree.nodes[place]
            assert node.finish == "forced" and node.ids_T[-3:].tolist() == ids and not node.sampled_T[-3:].any()
            assert len(tree.children[place]) == 2
    assert cases.mismatch(policy, trees, 1.0) < 1e-3


def test_without_a_marker_and_with_several_eos(engine):
    policy = cases.llama()
    sampling = Sampling(seed=1, marker=None, max_thought_tokens=20, max_answer_tokens=10)
    trees = cases.grown(engine(policy, stop=(1, 9, 15)), sampling, thoughts=40, answers=1)
    responses = [tree.nodes[i] for tree in trees for i in tree.children[0]]
    assert {n.kind for n in responses} == {"response"} and {n.finish for n in responses} == {"stop", "length"}
    assert {int(n.ids_T[-1]) for n in responses if n.finish == "stop"} == {1, 9, 15}
    for node in responses:
        assert not np.isin(node.ids_T[:-1], [1, 9, 15]).any()
        assert len(node.ids_T) == 30 or node.finish == "stop"


@pytest.mark.parametrize("marker", ["+-", "-", "<|end|>", "</think>"])
def test_thoughts_end_at_the_token_that_completes_the_marker(engine, marker):
    tokenizer = tiny.tokenizer()
    sampling = Sampling(seed=0, marker=marker, max_thought_tokens=60, max_answer_tokens=3)
    trees = cases.grown(engine(cases.llama()), sampling, thoughts=60, answers=1)
    thoughts = [tree.nodes[i] for tree in trees for i in tree.children[0]]
    assert "marker" in {node.finish for node in thoughts}
    for node in thoughts:
        text = tokenizer.decode(node.ids_T)
        assert text.find(marker) == (len(text) - len(marker) if node.finish == "marker" else -1)


def test_greedy_tokens_are_certain(engine):
    policy = cases.llama()
    sampling = Sampling(seed=1, temperature=0.0, max_thought_tokens=8, max_answer_tokens=4)
    for tree in cases.grown(engine(policy), sampling):
        thoughts = [tree.nodes[i] for i in tree.children[0]]
        assert len(thoughts) == 3 and len({tuple(n.ids_T.tolist()) for n in thoughts}) == 1
        assert not any(n.logprobs_T.any() for n in thoughts)


def test_truncated_sampling_is_the_distribution_left(engine):
    policy = cases.llama()
    e = engine(policy)
    sampling = Sampling(seed=1, top_k=3, max_thought_tokens=8, max_answer_tokens=4)
    for tree in cases.grown(e, sampling):
        for place in tree.children[0]:
            node, full = tree.nodes[place], cases.policy_logprobs(policy, tree, place)
            assert (node.logprobs_T >= full - 1e-4).all() and (node.logprobs_T - full).max() > 0.01


def test_a_merge_that_rounds_the_update_away_is_told(engine, caplog):
    policy = cases.lora(cases.llama())
    cases.updated(policy, 1e-4)
    with caplog.at_level(logging.WARNING, logger="branchwise"):
        engine(policy, way="merge", dtype=torch.bfloat16)
    assert "back to the base's" in caplog.text and "engine.lora: adapter" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"model": {"lora": {"r": 4}, "dtype": "float32"}}], ids=["full", "lora"])
def test_the_trainer_samples_from_its_own_policy(tmp_path, settings, monkeypatch):
    tiny.llama(**cases.SHAPE).save_pretrained(tmp_path / "m")
    tiny.tokenizer(tiny.CHAT).save_pretrained(tmp_path / "m")
    rows = [{"question": f"{a}+{b}=?", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (2, 2), (5, 1))]

    def likes_a(completion_ids, **_):
        return [ids.count(21) / len(ids) for ids in completion_ids]

    config = {
        "engine": {"kind": "vllm", "eager": True},
        "tree": {"thoughts": 4, "answers": 2},
        "data": {"max_prompt_tokens": 64},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5, "max_rows": 32, "kv_memory_gb": 0.2},
        "train": {
            "output_dir": str(tmp_path / "run"), "steps": 4, "questions": 3, "learning_rate": 1e-2,
            "precision": "float32", "device": "cpu",
        },
    } | settings  # fmt: skip
    summary = Trainer(str(tmp_path / "m"), [likes_a], rows, config=config).train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert summary["updates"] == 4 and all(line["max/mismatch"] < 1e-3 for line in lines)
    assert all(0 <= line["mismatch_kl"] < 1e-6 for line in lines)


def test_a_run_ended_and_resumed_on_vllm_is_the_run_in_one_go(tmp_path):
    """To the bound of its log-probs; tokens are the same, since every request has a seed of its own."""
    tiny.llama(**cases.SHAPE).save_pretrained(tmp_path / "m")
    tiny.tokenizer(tiny.CHAT).save_pretrained(tmp_path / "m")

    def config(folder):
        c = short_runs.settings(folder, steps=4)
        c["sampling"] |= {"max_rows": 32, "kv_memory_gb": 0.2}
        return c | {"engine": {"kind": "vllm", "eager": True}, "data": {"max_prompt_tokens": 64}}

    model = str(tmp_path / "m")
    short_runs.Trainer(
        model, [short_runs.likes_a], short_runs.ROWS, short_runs.ROWS[:3], config=config(tmp_path / "whole")
    ).train()
    short_runs.ended(model, config(tmp_path / "resumed"), 2)
    short_runs.Trainer(
        model, [short_runs.likes_a], short_runs.ROWS, short_runs.ROWS[:3], config=config(tmp_path / "resumed")
    ).train(True)
    (metrics, trees, weights), (resumed, regrown, again) = (
        short_runs.contents(tmp_path / name) for name in ("whole", "resumed")
    )
    assert [line["step"] for line in resumed] == [line["step"] for line in metrics]
    assert regrown.keys() == trees.keys()
    for name, text in trees.items():
        assert _drawn(regrown[name]) == _drawn(text)
    for name, weight in weights.items():
        np.testing.assert_allclose(again[name], weight, atol=1e-3)


def _drawn(text):
    return [[node["ids"] for node in json.loads(line)["nodes"]] for line in text.splitlines()]
