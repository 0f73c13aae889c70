"""Properties of advantages and weights on any tree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import config, of_kind, response, thought, tree, unclosed

from branchwise.algorithm.advantage import advantages, pools
from branchwise.algorithm.weights import count, credit

settings.register_profile("quick", max_examples=60, deadline=None)
settings.load_profile("quick")

REWARDS = st.sampled_from([0.0, 1.0, 0.3, -0.7, 2.5])
MAYBE = st.one_of(REWARDS, st.none())
TOKENS = st.integers(1, 5)
BRANCHES = st.one_of(
    st.builds(
        lambda r, n, m: thought(*r, tokens=n, answer_tokens=m), st.lists(MAYBE, min_size=1, max_size=4), TOKENS, TOKENS
    ),
    st.builds(lambda r, n: unclosed(r, tokens=n), MAYBE, TOKENS),
)
PHRASINGS = st.lists(st.lists(BRANCHES, max_size=4), min_size=1, max_size=3)
ALGORITHMS = st.fixed_dictionaries(
    {
        "pool": st.sampled_from(["phrasing", "question"]),
        "scale": st.sampled_from(["group", "batch", "none"]),
        "ddof": st.sampled_from([0, 1]),
        "aggregation": st.sampled_from(["sequence", "token", "constant"]),
        "answer_weight": st.sampled_from([1.0, 0.25]),
        "segments": st.just("split"),
    }
)


def both(algorithm, **sections):
    shape = {"rephrasings": 2, "thoughts": 4, "answers": 4}
    return config(tree={**shape, **sections.pop("tree", {})}, algorithm=algorithm, **sections)


def with_rewards(phrasings, change):
    """The same trees with other rewards."""

    def branch(b):
        new = [None if r is None else change(r) for r in b.answers]
        if b.kind == "thought" and b.answers:
            return thought(*new, tokens=b.tokens, answer_tokens=b.answer_tokens)
        return unclosed(None if b.reward is None else change(b.reward), tokens=b.tokens)

    return [[branch(b) for b in branches] for branches in phrasings]


@given(PHRASINGS, ALGORITHMS, st.randoms(use_true_random=False))
def test_the_order_of_leaves_changes_no_leafs_advantage(phrasings, algorithm, random):
    c = both(algorithm)
    orders = [random.sample(range(len(branches)), len(branches)) for branches in phrasings]
    t, shuffled = tree(*phrasings), tree(*([b[i] for i in order] for b, order in zip(phrasings, orders)))
    A, B = advantages([t], c)[0], advantages([shuffled], c)[0]
    for n, order in enumerate(orders):
        for place, i in zip(shuffled.children[n], order):
            twin = t.children[n][i]
            assert B[place] == pytest.approx(A[twin], abs=1e-9)
            below = [B[x] for x in shuffled.children[place]], [A[x] for x in t.children[twin]]
            assert below[0] == pytest.approx(below[1], abs=1e-9)


@given(st.lists(PHRASINGS, min_size=2, max_size=4), ALGORITHMS, st.randoms(use_true_random=False))
def test_the_order_of_trees_changes_nothing(forest, algorithm, random):
    c, trees = both(algorithm), [tree(*phrasings) for phrasings in forest]
    order = random.sample(range(len(trees)), len(trees))
    A, B = advantages(trees, c), advantages([trees[i] for i in order], c)
    for i, found in zip(order, B):
        assert found == pytest.approx(A[i], abs=1e-12)


@given(PHRASINGS, st.sampled_from(["phrasing", "question"]), st.floats(0.1, 50), st.floats(-20, 20))
def test_group_scale_does_not_see_how_rewards_are_scaled_and_shifted(phrasings, pool, a, b):
    c = both({"pool": pool, "eps": 0.0})
    A = advantages([tree(*phrasings)], c)[0]
    B = advantages([tree(*with_rewards(phrasings, lambda r: a * r + b))], c)[0]
    assert pytest.approx(A, abs=1e-6) == B


@given(PHRASINGS, st.sampled_from(["phrasing", "question"]), st.sampled_from([0.0, 1e-6]))
def test_no_advantage_exceeds_the_root_of_its_groups_size(phrasings, pool, eps):
    t = tree(*phrasings)
    A = advantages([t], both({"pool": pool, "eps": eps}))[0]
    for found in pools(t, pool):
        assert all(abs(A[leaf]) <= np.sqrt(found.counted) for leaf in found.leaves)


@given(PHRASINGS, ALGORITHMS)
def test_a_pools_advantages_add_up_to_0(phrasings, algorithm):
    t = tree(*phrasings)
    A = advantages([t], both(algorithm))[0]
    for found in pools(t, algorithm["pool"]):
        thoughts = {t.path(leaf)[1] for leaf in found.leaves}
        assert sum(A[place] for place in thoughts) == pytest.approx(0, abs=1e-8)


@given(PHRASINGS)
def test_in_a_uniform_question_every_phrasing_is_uniform(phrasings):
    t = tree(*phrasings)
    if pools(t, "question")[0].uniform:
        assert all(pool.uniform or pool.counted < 2 for pool in pools(t, "phrasing"))
        A = advantages([t], both({"pool": "question"}))[0]
        assert all(a == 0.0 for a in A)


GROUPS = st.lists(st.floats(-5, 5), min_size=2, max_size=16)


@given(GROUPS, st.lists(TOKENS, min_size=16, max_size=16), st.sampled_from([0, 1]), st.sampled_from([1e-6, 1e-4]))
def test_one_wording_and_one_answer_is_grpo_to_the_bit(rewards, lengths, ddof, eps):
    R, n_tokens = np.array(rewards), lengths[: len(rewards)]
    uniform = np.ptp(R) <= 1e-9 * max(1, np.abs(R).max())
    grpo = np.zeros(len(R)) if uniform else (R - R.mean()) / (R.std(ddof=ddof) + eps)
    c = config(tree={"thoughts": len(R)}, algorithm={"ddof": ddof, "eps": eps})
    for t, above in (
        (tree([thought(r, tokens=n, answer_tokens=2) for r, n in zip(rewards, n_tokens)]), 2),
        (tree([response(r, tokens=n) for r, n in zip(rewards, n_tokens)]), 0),
    ):
        (A,) = advantages([t], c)
        (found,) = credit([t], [A], count([t], c), c)
        sequence_mean = [1 / (len(R) * (n + above)) for n in n_tokens]
        for kind in {node.kind for node in t.nodes} - {"phrasing"}:
            assert of_kind(t, found.advantage, kind) == grpo.tolist()
            assert of_kind(t, found.weight, kind) == sequence_mean


FORESTS = st.lists(PHRASINGS, min_size=1, max_size=5)
TREES = st.fixed_dictionaries(
    {"unclosed": st.sampled_from(["score", "mask"]), "uniform": st.sampled_from(["keep", "drop"])}
)


def tokens_times_weight(trees, found):
    return sum(len(node.ids_T) * w for t, f in zip(trees, found) for node, w in zip(t.nodes, f.weight))


@given(FORESTS, ALGORITHMS, TREES)
def test_weights_add_up_to_1_for_thoughts_and_answer_weight_for_answers(forest, algorithm, shape):
    c, trees = both(algorithm, tree=shape), [tree(*phrasings) for phrasings in forest]
    counts = count(trees, c)
    found = credit(trees, advantages(trees, c), counts, c)
    tokens = [0, 0]
    masked = 0
    for t, f in zip(trees, found):
        for node, w, unit, segment in zip(t.nodes, f.weight, f.unit, f.segment):
            tokens[segment] += len(node.ids_T) * (w > 0)
            masked += shape["unclosed"] == "mask" and node.unclosed and unit >= 0
    n_thoughts, n_answers, n_tokens = counts.values()
    ratio = algorithm["answer_weight"]
    expected = {
        "sequence": (n_thoughts - masked) / max(1, n_thoughts) + ratio * (n_answers > 0),
        "token": (tokens[0] + ratio * tokens[1]) / max(1, n_tokens),
        "constant": tokens[0] / (max(1, n_thoughts) * 1024) + ratio * tokens[1] / (max(1, n_answers) * 512),
    }
    assert tokens_times_weight(trees, found) == pytest.approx(expected[algorithm["aggregation"]])
    assert n_tokens == sum(tokens)


@given(FORESTS, ALGORITHMS, TREES, st.integers(1, 4))
def test_any_split_of_a_step_gives_each_token_the_same_weight(forest, algorithm, shape, size):
    c, trees = both(algorithm, tree=shape), [tree(*phrasings) for phrasings in forest]
    A = advantages(trees, c)
    parts = [slice(i, i + size) for i in range(0, len(trees), size)]
    counted = [count(trees[part], c) for part in parts]
    counts = {key: sum(of_part[key] for of_part in counted) for key in counted[0]}
    assert counts == count(trees, c)
    whole = credit(trees, A, counts, c)
    split = [found for part in parts for found in credit(trees[part], A[part], counts, c)]
    assert all((a.weight == b.weight).all() for a, b in zip(whole, split))
