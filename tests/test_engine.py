"""The in-process engine against plain forwards: whatever forks, leaves and moves, the log-probs are the model's own."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    Lfm2Config,
    Mamba2Config,
    MistralConfig,
    Qwen3Config,
    Qwen3NextConfig,
)
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING

from branchwise.algorithm.credit import Credit
from branchwise.policy.pack import build_packs
from branchwise.rollout.cache import RoomyLayer, new_cache
from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.forking import Growth
from branchwise.rollout.transformers import TransformersEngine
from branchwise.tree import Question, Tree, prompt_node

VOCABULARY = len(tiny.ALPHABET) + 6
EOS, CLOSE = 1, 5
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": None}
GQA = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
FAMILIES = {
    "llama": lambda: tiny.llama().config,
    "qwen3": lambda: Qwen3Config(**SHAPE, **ENDS, **GQA),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, **ENDS
    ),
    "mistral": lambda: MistralConfig(**SHAPE, **ENDS, **GQA, sliding_window=5),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, **ENDS, **GQA, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "lfm2": lambda: Lfm2Config(
        **SHAPE, **ENDS, intermediate_size=48, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "qwen3-next": lambda: Qwen3NextConfig(
        **SHAPE,
        **ENDS,
        **GQA,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "mamba2": lambda: Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=8, n_groups=2,
        chunk_size=8, **ENDS,
    ),
}  # fmt: skip
SAMPLING = Sampling(seed=3, temperature=0.8, max_thought_tokens=14, max_answer_tokens=9)


def family(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[name]()).to(dtype).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            # far enough from uniform for errors to show
            weight.data.mul_(4.0)
    return model


def engine(model, max_rows=64, tokenizer=None):
    tokenizer = tokenizer or tiny.tokenizer()
    return TransformersEngine(model, tokenizer, dtype=model.dtype, device="cpu", max_rows=max_rows)


def tree(draw, *prompts, step=2):
    t = Tree(Question(str(draw), ("text",) * len(prompts)), draw, step)
    for n, prompt in enumerate(prompts):
        t.add(prompt_node(n, prompt))
    return t


def forest():
    """Three questions, five prompts of different lengths that begin alike, one of them twice."""
    begin = [7, 8, 9, 10, 11, 12, 13]
    return [
        tree(0, [*begin, 14, 15, 16]),
        tree(1, [*begin, 20], [*begin, 20, 21, 22, 23, 24, 25, 6, 7, 8], [*begin, 14, 15, 16]),
        tree(2, [*begin, 17, 17, 17, 18]),
    ]


def limbs(trees, thoughts=3, answers=2):
    return [Limb(t, place, thoughts, answers) for t in trees for place in t.phrasings()]


def grown(model, sampling=SAMPLING, max_rows=64, thoughts=3, answers=2):
    trees = forest()
    engine(model, max_rows).grow(limbs(trees, thoughts, answers), sampling)
    return trees


def expected_logprobs(model, t, place, temperature):
    """A node's log-probs from one forward of its whole path, without padding or cache."""
    path = t.path(place)
    ids = torch.from_numpy(np.concatenate([t.nodes[i].ids_T for i in path]))
    own = len(t.nodes[place].ids_T)
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -own - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, ids[-own:, None])[:, 0]


def assert_exact(model, trees, temperature=SAMPLING.temperature):
    for t in trees:
        for place, node in enumerate(t.nodes):
            if node.parent >= 0:
                expected = expected_logprobs(model, t, place, temperature).numpy()
                expected = np.where(node.sampled_T, expected, 0)
                np.testing.assert_allclose(node.logprobs_T, expected, rtol=1e-5, atol=1e-5)


def contents(trees):
    return [
        (node.kind, node.parent, node.index, node.ids_T.tolist(), node.sampled_T.tolist(), node.finish)
        for t in trees
        for node in t.nodes
    ]


@pytest.mark.parametrize("max_rows", [128, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_those_of_a_plain_forward(name, max_rows):
    model = family(name)
    trees = grown(model, max_rows=max_rows, thoughts=8)
    nodes = [node for t in trees for node in t.nodes if node.parent >= 0]
    # the test is worth something only if rows fork, leave and outlast each other
    assert len({len(node.ids_T) for node in nodes}) > 5
    assert {node.finish for node in nodes} == {"marker", "stop", "length"}
    assert_exact(model, trees)


def test_room_that_no_token_has_filled_is_never_read_as_a_number():
    """Fresh memory may hold anything, NaN among it; here it always does."""
    model = family("gpt2", torch.float64)
    together = contents(grown(model))
    torch.use_deterministic_algorithms(True)  # fills what is empty with NaN
    try:
        for max_rows in (4, 7):
            assert contents(grown(model, max_rows=max_rows)) == together
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_those_of_a_plain_forward_with_forced_tokens(name):
    model = family(name)
    trees = grown(model, replace(SAMPLING, force_close=True, max_thought_tokens=4))
    assert any(node.finish == "forced" for t in trees for node in t.nodes)
    assert_exact(model, trees)


def test_a_tree_has_its_nodes_in_order_of_k_and_m():
    for t in grown(family("llama")):
        for n, phrasing in enumerate(t.phrasings()):
            thoughts = [t.nodes[i] for i in t.children[phrasing]]
            assert [node.index for node in thoughts] == [0, 1, 2]
            assert t.nodes[phrasing].index == n
            for place in t.children[phrasing]:
                closed = t.nodes[place].finish == "marker"
                assert [t.nodes[i].index for i in t.children[place]] == ([0, 1] if closed else [])
                assert {t.nodes[i].kind for i in t.children[place]} <= {"answer"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "lfm2"])
def test_what_is_drawn_does_not_depend_on_what_is_drawn_beside_it(name):
    model = family(name, torch.float64)
    together = contents(grown(model))
    backwards = forest()
    engine(model).grow(limbs(backwards)[::-1], SAMPLING)
    alone = forest()
    for limb in limbs(alone):
        engine(model).grow([limb], SAMPLING)

    def by_prompt(trees):
        return [sorted(str(contents_of(t, place)) for place in t.phrasings()) for t in trees]

    assert contents(grown(model, max_rows=4)) == together
    assert contents(grown(model, max_rows=7)) == together
    assert contents(alone) == together
    assert by_prompt(backwards) == by_prompt(alone)


def contents_of(t, place):
    """What hangs below a node, free of places."""
    node = t.nodes[place]
    return (node.index, node.ids_T.tolist(), node.finish, [contents_of(t, child) for child in t.children[place]])


def test_runs_repeat_and_other_seeds_steps_and_draws_differ():
    model = family("llama")
    assert contents(grown(model)) == contents(grown(model))
    assert contents(grown(model)) != contents(grown(model, replace(SAMPLING, seed=4)))
    for other in (tree(0, [7, 8, 9], step=3), tree(1, [7, 8, 9], step=2)):
        first = tree(0, [7, 8, 9], step=2)
        engine(model).grow(limbs([first, other]), SAMPLING)
        assert contents([first]) != contents([other])


def test_frequencies_are_the_models_probabilities():
    # 4000 first tokens after one prompt; chi-square with 25 degrees of freedom is below 53 in 999 of 1000 cases
    model, t = family("llama"), tree(0, [7, 8, 9, 10])
    sampling = Sampling(seed=0, temperature=1.5, marker=None, max_thought_tokens=1, max_answer_tokens=0)
    engine(model, max_rows=4000).grow([Limb(t, 0, 4000, 1)], sampling)
    drawn = np.bincount([t.nodes[i].ids_T[0] for i in t.children[0]], minlength=VOCABULARY)
    with torch.no_grad():
        logits = model(torch.tensor([[7, 8, 9, 10]])).logits[0, -1]
    expected = 4000 * (logits.double() / 1.5).softmax(-1).numpy()
    common = expected > 5
    assert ((drawn - expected)[common] ** 2 / expected[common]).sum() < 53


def test_each_prompt_token_is_forwarded_once():
    model = family("llama")
    trees, fed = forest(), Counter()

    def count(module, args, kwargs):
        fed[kwargs["input_ids"].shape[1] > 1] += kwargs["input_ids"].numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    sampler = engine(model)
    sampler.grow(limbs(trees, thoughts=8, answers=1), SAMPLING)
    # 7 common tokens, then 3, 1, 9 and 4 of their own, in one batch padded to 9; the prompt of question 0 is also 1's
    assert fed[True] == 7 + 4 * 9
    fed.clear()
    engine(model, max_rows=4).grow(limbs(forest(), thoughts=8, answers=1), SAMPLING)
    # the question whose own part is one token looks like any other step
    assert fed[True] == 7 + 3 + 9 + 4


def test_a_closed_thought_is_not_forwarded_again_for_its_answers():
    model, fed = family("llama"), []
    model.register_forward_pre_hook(lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True)
    t = tree(0, [7, 8, 9])
    engine(model).grow([Limb(t, 0, 3, 4)], SAMPLING)
    nodes = [t.nodes[i] for i in range(1, len(t.nodes))]
    assert any(node.kind == "answer" for node in nodes)
    # every sampled token is fed at most once, the last of a leaf never
    leaves = sum(1 for _ in t.leaves())
    assert sum(fed) == 3 + sum(len(node.ids_T) for node in nodes) - leaves


def test_no_more_rows_than_allowed():
    model, rows = family("llama"), []
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    engine(model, max_rows=5).grow(limbs(forest(), thoughts=4, answers=2), SAMPLING)
    assert max(rows) <= 5


def test_a_phrasing_grown_again_gets_further_thoughts():
    model = family("llama")
    at_once, in_turn, twice = tree(0, [7, 8, 9]), tree(0, [7, 8, 9]), tree(0, [7, 8, 9])
    engine(model).grow([Limb(at_once, 0, 5, 2)], SAMPLING)
    engine(model).grow([Limb(in_turn, 0, 2, 2)], SAMPLING)
    engine(model).grow([Limb(in_turn, 0, 3, 2)], SAMPLING)
    engine(model).grow([Limb(twice, 0, 2, 2), Limb(twice, 0, 3, 2)], SAMPLING)
    assert contents([in_turn]) == contents([at_once]) == contents([twice])


def test_every_eos_of_the_generation_config_ends_a_node():
    # cases B07 and B08: the ids, one of them also the padding, and the finish reason that does not rest on them
    model = family("llama")
    model.generation_config.eos_token_id = [0, 21]
    nodes = [n for t in grown(model, thoughts=12) for n in t.nodes if n.kind == "answer"]
    ends = Counter((node.finish, int(node.ids_T[-1])) for node in nodes)
    assert {(finish, end) for finish, end in ends if finish == "stop"} == {("stop", EOS), ("stop", 0), ("stop", 21)}
    assert not any(set(node.ids_T[:-1].tolist()) & {0, EOS, 21} for node in nodes)
    assert all(len(node.ids_T) == SAMPLING.max_answer_tokens for node in nodes if node.finish == "length")


def test_an_end_at_exactly_the_limit_is_no_truncation():
    model = family("llama")
    for limit in range(1, 6):
        sampling = replace(SAMPLING, max_thought_tokens=limit, max_answer_tokens=limit)
        for t in grown(model, sampling, thoughts=6):
            for node in t.nodes[len(t.phrasings()) :]:
                last = int(node.ids_T[-1])
                expected = {EOS: "stop", CLOSE: "marker" if node.kind == "thought" else "length"}.get(last, "length")
                if len(node.ids_T) == limit:
                    assert node.finish == expected
                assert len(node.ids_T) <= limit


def test_without_a_marker_responses_have_both_limits():
    model = family("llama")
    trees = grown(model, replace(SAMPLING, marker=None), answers=1)
    nodes = [n for t in trees for n in t.nodes if n.parent >= 0]
    assert {node.kind for node in nodes} == {"response"}
    assert {node.finish for node in nodes} == {"stop", "length"}
    assert {len(n.ids_T) for n in nodes if n.finish == "length"} == {14 + 9}
    assert any(CLOSE in node.ids_T[:-1] for node in nodes)
    assert_exact(model, trees)


def test_forced_thoughts_are_closed_and_answered():
    trees = grown(family("llama"), replace(SAMPLING, force_close=True, max_thought_tokens=6), thoughts=8)
    thoughts = [(t, i) for t in trees for i, n in enumerate(t.nodes) if n.kind == "thought"]
    assert {t.nodes[i].finish for t, i in thoughts} == {"marker", "forced"}
    assert all(len(t.children[i]) == 2 for t, i in thoughts)
    forced = [t.nodes[i] for t, i in thoughts if t.nodes[i].finish == "forced"]
    for node in forced:
        assert node.ids_T[-1] == CLOSE and CLOSE not in node.ids_T[:-1]
        assert node.sampled_T.tolist() == [True] * (len(node.ids_T) - 1) + [False]
        assert node.logprobs_T[-1] == 0
        # an EOS was drawn, so it stays
        assert node.ids_T[-2] == EOS or len(node.ids_T) == 6 + 1
    assert {int(node.ids_T[-2]) == EOS for node in forced} == {True, False}


def test_greedy_draws_the_likeliest_tokens():
    model, t = family("llama"), tree(0, [7, 8, 9])
    engine(model).grow([Limb(t, 0, 2, 1)], replace(SAMPLING, temperature=0, marker=None))
    first, second = (t.nodes[i] for i in t.children[0])
    assert first.ids_T.tolist() == second.ids_T.tolist() and not first.logprobs_T.any()
    expected = model.generate(torch.tensor([[7, 8, 9]]), do_sample=False, max_new_tokens=23)[0, 3:]
    assert first.ids_T.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "limb, sampling, max_rows, message",
    [
        ((2, 3), replace(SAMPLING, marker=None), 64, "tree.answers: 3 answers from a thought need tree.marker"),
        ((2, 3), SAMPLING, 2, "sampling.max_rows: 2 rows cannot hold a thought's tree.answers: 3"),
        (
            (2, 1),
            replace(SAMPLING, max_thought_tokens=60),
            64,
            "3 tokens and responses of up to 69 pass the model's 64",
        ),
    ],
)
def test_what_cannot_be_grown_is_refused(limb, sampling, max_rows, message):
    t = tree(0, [7, 8, 9])
    with pytest.raises(ValueError, match=message):
        engine(family("gpt2"), max_rows).grow([Limb(t, 0, *limb)], sampling)
    assert len(t.nodes) == 1


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(ValueError, match="question '4': phrasing 0 has no tokens"):
        engine(family("llama")).grow([Limb(tree(4, []), 0, 1, 1)], SAMPLING)


@pytest.mark.skipif("indexed_attention" not in DYNAMIC_LAYER_TYPE_MAPPING, reason="this transformers has no such layer")
def test_a_cache_that_cannot_be_forked_is_refused():
    config = tiny.llama().config
    config.layer_types = ["indexed_attention", "full_attention"]
    with pytest.raises(ValueError, match="'llama' keeps a DynamicIndexedLayer between tokens"):
        new_cache(config)


def test_the_model_is_left_as_it_was():
    model = family("llama").train()
    model.model.layers[0].mlp.eval()
    before = [module.training for module in model.modules()]
    grown(model)
    assert [module.training for module in model.modules()] == before and model.training
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "qwen3-next"])
def test_waiting_thoughts_join_rows_under_way_where_the_cache_admits_gaps(name, monkeypatch):
    """Eight questions through six rows: with gaps most rows are busy while others wait, else they run out."""
    model = family(name)
    trees = [tree(b, [7, 8, 9, *range(6, 7 + 5 * b % 11)]) for b in range(8)]
    seen = []
    forward = Growth._forward
    monkeypatch.setattr(
        Growth, "_forward", lambda self: (seen.append((len(self.slot_R), len(self.waiting))), forward(self))[1]
    )
    engine(model, max_rows=6).grow(limbs(trees, thoughts=3, answers=1), SAMPLING)
    assert_exact(model, trees)
    rows_while_others_wait = [rows for rows, waiting in seen if waiting]
    assert max(rows for rows, _ in seen) <= 6
    if name in ("llama", "gpt2"):
        assert np.mean(rows_while_others_wait) > 5
    else:
        assert min(rows_while_others_wait) == 1


def test_rows_stay_within_the_memory_for_keys_and_values(monkeypatch):
    model = family("llama")
    sampled = TransformersEngine(model, tiny.tokenizer(), dtype=model.dtype, device="cpu", max_rows=64)
    config = model.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert sampled.decoder.bytes_per_token == per_token
    peak = []
    update = RoomyLayer.update
    monkeypatch.setattr(
        RoomyLayer,
        "update",
        lambda self, *args, **kwargs: (update(self, *args, **kwargs), peak.append(self.key_buffer.nbytes))[0],
    )
    sampled.kv_bytes = 5 * per_token * (13 + 14 + 9 + 3 * 128)  # five rows of the longest prompt and the limits
    trees = [tree(b, [7, 8, 9, *range(6, 16)]) for b in range(9)]
    sampled.grow(limbs(trees, thoughts=3, answers=2), SAMPLING)
    assert_exact(model, trees)
    assert max(peak) * 2 * config.num_hidden_layers <= sampled.kv_bytes
    sampled.kv_bytes /= 3
    with pytest.raises(ValueError, match=r"sampling.kv_memory_gb: .* holds 1 sequences"):
        sampled.grow(limbs(trees, thoughts=3, answers=2), SAMPLING)


def test_the_ids_that_were_drawn_are_the_ids_that_are_trained():
    """Case B15: a and b drawn one after the other, though decoded and encoded again they are the one token ab."""
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["ab"])
    prompt, a, b, ab = (tokenizer.convert_tokens_to_ids(text) for text in ("7", "a", "b", "ab"))
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [ab]
    model = tiny.llama(vocabulary=VOCABULARY + 1, hidden_size=64).eval()
    with torch.no_grad():  # the next token depends on the last alone: 7, a, b, the end
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY + 1, 64))
        model.lm_head.weight.zero_()
        for last, following in ((prompt, a), (a, b), (b, EOS)):
            model.lm_head.weight[following, last] = 9.0
    for most, drawn in ((5, [a, b, EOS]), (2, [a, b])):
        t = tree(0, [prompt])
        sampling = Sampling(seed=0, marker=None, max_thought_tokens=most - 1, max_answer_tokens=1)
        engine(model, tokenizer=tokenizer).grow([Limb(t, 0, 1, 0)], sampling)
        node = t.nodes[1]
        assert node.ids_T.tolist() == drawn and len(node.logprobs_T) == len(drawn)
        credit = Credit([0.0, 1.0], np.array([0.0, 1.0]), np.array([-1, 0]), np.zeros(2, np.int64), {0: 0})
        (pack,) = build_packs([t], [credit], budget=100, device="cpu", prune=True)
        assert pack.target_S.tolist() == drawn and len(pack.scored.sampler_S) == len(drawn)
