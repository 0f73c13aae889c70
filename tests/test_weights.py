"""What a token weighs, by hand, and that no split of a step changes it."""

import numpy as np
import pytest
from trees import config, of_kind, response, thought, tree, unclosed

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.weights import count, credit

TREE = tree(
    [
        thought(1, 0, None, tokens=4, answer_tokens=(2, 5, 9)),
        unclosed(0, tokens=6),
        thought(1, 1, tokens=3, answer_tokens=1),
        thought(None, None, tokens=8),
    ]
)
"""Three thoughts of 4, 6 and 3 tokens and four answers of 2, 5, 1 and 1 count: 22 tokens."""


def weights(t, **sections):
    sections = {"tree": {"thoughts": 4, "answers": 3, **sections.pop("tree", {})}, **sections}
    c = config(**sections)
    counts = count([t], c)
    return counts, credit([t], advantages([t], c), counts, c)[0]


def split(t, **sections):
    counts, found = weights(t, **sections)
    return counts, of_kind(t, found.weight, "thought"), of_kind(t, found.weight, "answer")


def test_sequence_means_over_each_node_and_over_nodes():
    counts, thoughts, answers = split(TREE)
    assert counts == {"thoughts": 3, "answers": 4, "tokens": 22}
    assert thoughts == pytest.approx([1 / (3 * 4), 1 / (3 * 6), 1 / (3 * 3), 0])
    assert answers == pytest.approx([1 / (4 * 2), 1 / (4 * 5), 0, 1 / 4, 1 / 4, 0, 0])


def test_token_counts_each_tree_token_once():
    _, thoughts, answers = split(TREE, algorithm={"aggregation": "token"})
    assert thoughts == pytest.approx([1 / 22, 1 / 22, 1 / 22, 0])
    assert answers == pytest.approx([1 / 22, 1 / 22, 0, 1 / 22, 1 / 22, 0, 0])


def test_constant_divides_by_the_sampling_limits():
    limits = {"max_thought_tokens": 10, "max_answer_tokens": 20}
    _, thoughts, answers = split(TREE, algorithm={"aggregation": "constant"}, sampling=limits)
    assert thoughts == pytest.approx([1 / 30, 1 / 30, 1 / 30, 0])
    assert answers == pytest.approx([1 / 80, 1 / 80, 0, 1 / 80, 1 / 80, 0, 0])


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
def test_answer_weight_multiplies_answers_alone(aggregation):
    _, thoughts, answers = split(TREE, algorithm={"aggregation": aggregation})
    _, thoughts_half, answers_half = split(TREE, algorithm={"aggregation": aggregation, "answer_weight": 0.5})
    assert thoughts_half == thoughts and answers_half == pytest.approx(np.array(answers) / 2)


def test_a_masked_unclosed_thought_still_counts_as_a_node_but_not_as_tokens():
    counts, thoughts, _ = split(TREE, tree={"unclosed": "mask"})
    assert counts == {"thoughts": 3, "answers": 4, "tokens": 16}
    assert thoughts == pytest.approx([1 / (3 * 4), 0, 1 / (3 * 3), 0])


def test_a_masked_thoughts_reward_stays_in_the_pool():
    _, found = weights(TREE, tree={"unclosed": "mask"}, algorithm={"scale": "none"})
    assert of_kind(TREE, found.advantage, "thought") == pytest.approx([0, -0.5, 0.5, 0])


def test_forced_tokens_are_no_tokens():
    t = tree([thought(1, 0, tokens=5, forced=2, finish="forced"), thought(0, 0, tokens=3)])
    counts, thoughts, _ = split(t)
    assert counts == {"thoughts": 2, "answers": 4, "tokens": 14}
    assert thoughts == pytest.approx([1 / (2 * 3), 1 / (2 * 3)])


UNIFORM = tree([thought(1, 1), thought(1, 1)], [thought(1, 0), thought(0, 0)])


def test_dropped_uniform_pools_are_out_of_the_counts_and_kept_ones_in():
    counts, thoughts, answers = split(UNIFORM, tree={"uniform": "keep", "rephrasings": 1})
    assert counts == {"thoughts": 4, "answers": 8, "tokens": 28}
    assert thoughts == pytest.approx([1 / 12] * 4) and answers == pytest.approx([1 / 16] * 8)
    counts, thoughts, answers = split(UNIFORM, tree={"uniform": "drop", "rephrasings": 1})
    assert counts == {"thoughts": 2, "answers": 4, "tokens": 14}
    assert thoughts == pytest.approx([0, 0, 1 / 6, 1 / 6]) and answers == pytest.approx([0] * 4 + [1 / 8] * 4)


def test_a_pool_with_a_single_reward_is_dropped_as_a_uniform_one_is():
    lone = tree([thought(1, None), thought(None, None)], [thought(1, 0), thought(0, 0)])
    counts, *_ = split(lone, tree={"uniform": "drop", "rephrasings": 1})
    assert counts == {"thoughts": 2, "answers": 4, "tokens": 14}
    counts, *_ = split(lone, tree={"uniform": "keep", "rephrasings": 1})
    assert counts == {"thoughts": 3, "answers": 5, "tokens": 19}


def test_under_a_question_pool_a_uniform_phrasing_is_not_dropped():
    counts, *_ = split(UNIFORM, tree={"uniform": "drop", "rephrasings": 1}, algorithm={"pool": "question"})
    assert counts["thoughts"] == 4


JOINT = tree([thought(1, tokens=4, answer_tokens=2), unclosed(0, tokens=5)])


def test_joint_segments_take_a_response_as_one_node():
    counts, found = weights(JOINT, tree={"thoughts": 2, "answers": 1})
    assert counts == {"thoughts": 2, "answers": 0, "tokens": 11}
    assert found.weight == pytest.approx([0, 1 / (2 * 6), 1 / (2 * 6), 1 / (2 * 5)])
    assert found.unit.tolist() == [-1, 1, 1, 3] and found.segment.tolist() == [0, 0, 0, 0]


def test_split_segments_take_thought_and_answer_apart():
    settings = {"tree": {"thoughts": 2, "answers": 1}, "algorithm": {"segments": "split"}}
    counts, found = weights(JOINT, **settings)
    assert counts == {"thoughts": 2, "answers": 1, "tokens": 11}
    assert found.weight == pytest.approx([0, 1 / (2 * 4), 1 / 2, 1 / (2 * 5)])
    assert found.unit.tolist() == [-1, 1, 2, 3] and found.segment.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("segments", ["joint", "split"])
def test_a_response_without_a_marker_has_both_limits(segments):
    t = tree([response(1, tokens=4), response(0, tokens=2)])
    _, found = weights(
        t,
        tree={"answers": 1, "marker": None},
        algorithm={"aggregation": "constant", "segments": segments},
        sampling={"max_thought_tokens": 10, "max_answer_tokens": 20},
    )
    assert found.weight == pytest.approx([0, 1 / 60, 1 / 60])


def test_joint_thought_and_answer_have_both_limits():
    _, found = weights(
        JOINT,
        tree={"answers": 1},
        algorithm={"aggregation": "constant"},
        sampling={"max_thought_tokens": 10, "max_answer_tokens": 20},
    )
    assert found.weight == pytest.approx([0, 1 / 60, 1 / 60, 1 / 60])


@pytest.mark.parametrize(
    ("anchor", "context"),
    [("original", {0: 0, 1: 0, 2: 0}), ("importance", {0: 0, 1: 0, 2: 0}), ("behaviour", {0: 0, 1: 1, 2: 2})],
)
def test_the_anchor_is_the_prompt_that_ratios_are_conditioned_on(anchor, context):
    t = tree([thought(1)], [thought(0)], [thought(1)])
    settings = {"anchor": anchor, "correction": 2.0 if anchor == "importance" else None, "pool": "question"}
    assert weights(t, tree={"rephrasings": 2}, algorithm=settings)[1].context == context


def test_a_step_without_any_reward_weighs_nothing():
    counts, found = weights(tree([thought(None, None), unclosed(None)]))
    assert counts == {"thoughts": 0, "answers": 0, "tokens": 0} and not found.weight.any()


def test_case_b10_token_mean_is_the_same_for_every_split():
    a, b = tree([response(1, tokens=10)]), tree([response(0, tokens=30)])
    c = config(tree={"marker": None}, algorithm={"aggregation": "token"})
    loss_of = {id(a): 1.0, id(b): 0.0}  # of each token
    counts = [count(part, c) for part in ([a, b], [a], [b])]
    assert counts[0] == {key: counts[1][key] + counts[2][key] for key in counts[1]}

    def loss(trees):
        found = credit(trees, [[0.0, 0.0]] * len(trees), counts[0], c)
        return sum(f.weight[1] * len(t.nodes[1].ids_T) * loss_of[id(t)] for t, f in zip(trees, found))

    assert loss([a, b]) == loss([a]) + loss([b]) == 0.25
