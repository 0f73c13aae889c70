"""Advantages against values worked out by hand, and pools that have nothing to compare."""

import threading
from math import sqrt

import numpy as np
import pytest
from trees import config, of_kind, response, thought, tree, unclosed

from branchwise.algorithm.advantage import advantages, batch_std, overlong_penalty, pools
from branchwise.config import ConfigError


def advantage(*trees, total=dict, **algorithm):
    """Advantages of each tree's thoughts (or responses), and of its answers, with eps 0."""
    c = config(tree={"thoughts": 4, "rephrasings": 2}, algorithm={"eps": 0.0, **algorithm})
    found = advantages(trees, c, total)
    pairs = [(of_kind(t, A, "thought", "response"), of_kind(t, A, "answer")) for t, A in zip(trees, found)]
    return pairs if len(pairs) > 1 else pairs[0]


def test_case_b03_group_scale_with_both_kinds_of_std():
    four = tree([response(r) for r in (1, 0, 0, 0)])
    two = tree([response(r) for r in (5, 4)])
    for ddof, first, second in (
        (1, [1.5, -0.5, -0.5, -0.5], [sqrt(0.5), -sqrt(0.5)]),
        (0, [sqrt(3), -sqrt(1 / 3), -sqrt(1 / 3), -sqrt(1 / 3)], [1, -1]),
    ):
        (a, _), (b, _) = advantage(four, two, ddof=ddof)
        assert a == pytest.approx(first) and b == pytest.approx(second)


def test_eps_is_added_to_the_std():
    thoughts, _ = advantage(tree([response(5), response(4)]), ddof=0, eps=0.5)
    assert thoughts == [0.5, -0.5]


def test_case_b27_grpo_ma_values_and_advantages():
    thoughts, answers = advantage(tree([thought(1, 0), thought(0, 0)]))
    assert thoughts == pytest.approx([sqrt(0.5), -sqrt(0.5)])  # V = 0.5, 0
    assert answers == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_grpo_ma_on_an_uneven_tree():
    t = tree([thought(1, 0, None), unclosed(0), thought(1, 1, 1), thought(None, None)])
    thoughts, answers = advantage(t)
    # V = 0.5, 0 (its own reward) and 1: mean 0.5, std 0.5; the last thought has no rewarded leaf
    assert thoughts == pytest.approx([0, -1, 1, 0])
    # R = 1, 0, 0, 1, 1, 1, the unclosed one among them: mean 2/3, variance (4·1/9 + 2·4/9)/5 = 4/15
    one, zero = (1 / 3) / sqrt(4 / 15), (-2 / 3) / sqrt(4 / 15)
    assert answers == pytest.approx([one, zero, 0, one, one, one, 0, 0])


UNEVEN = tree([thought(1), thought(1)], [thought(0)], [unclosed(0), thought(None)])
"""Of three wordings the second has one response only, and of the third one is unclosed, one not rewarded."""


def test_ta_grpo_pools_all_wordings_of_an_uneven_tree():
    thoughts, answers = advantage(UNEVEN, pool="question")
    a = 0.5 / sqrt(4 * 0.25 / 3)  # R = V = 1, 1, 0, 0: mean 0.5
    assert thoughts == pytest.approx([a, a, -a, -a, 0])
    assert answers == pytest.approx([a, a, -a, 0])


def test_the_same_tree_by_phrasing_has_nothing_to_compare():
    assert advantage(UNEVEN, pool="phrasing") == ([0, 0, 0, 0, 0], [0, 0, 0, 0])


def test_both_together_compare_thoughts_and_answers_over_all_wordings():
    thoughts, answers = advantage(tree([thought(1, 1), thought(1, 0)], [thought(0, 0)]), pool="question")
    # V = 1, 0.5, 0: mean 0.5, std 0.5; R = 1, 1, 1, 0, 0, 0: mean 0.5, variance 6·0.25/5 = 0.3
    assert thoughts == pytest.approx([1, 0, -1])
    assert answers == pytest.approx([0.5 / sqrt(0.3)] * 3 + [-0.5 / sqrt(0.3)] * 3)


def test_scale_none_only_centres():
    thoughts, answers = advantage(tree([thought(1, 0, None), unclosed(0), thought(1, 1, 1)]), scale="none")
    assert thoughts == pytest.approx([0, -0.5, 0.5])
    assert answers == pytest.approx([1 / 3, -2 / 3, 0, 1 / 3, 1 / 3, 1 / 3])


def test_case_b02_leave_one_out():
    rewards = [0.0, *[0.35] * 7]
    responses, _ = advantage(tree([response(r) for r in rewards]), baseline="leave_one_out", scale="none")
    assert responses == pytest.approx([-0.35, *[0.35 - 6 / 7 * 0.35] * 7], abs=1e-12)
    with pytest.raises(ConfigError, match=r"leave_one_out.*set algorithm.scale: none"):
        config(algorithm={"baseline": "leave_one_out", "scale": "group"})


def test_a_thoughts_leave_one_out_baseline_leaves_out_its_own_answers():
    t = tree([thought(1, 0), unclosed(0), thought(1, 1, 1)])  # V = 0.5, 0, 1
    thoughts, _ = advantage(t, baseline="leave_one_out", scale="none")
    assert thoughts == pytest.approx([0.5 - 0.5, 0 - 0.75, 1 - 0.25])


TWO = tree([thought(1, 0), thought(0, 0)]), tree([thought(3, 3), thought(3, None)], [unclosed(1)])


def test_scale_batch_divides_by_the_std_of_all_rewards():
    (thoughts, answers), (others, _) = advantage(*TWO, scale="batch")
    std = np.std([1, 0, 0, 0, 3, 3, 3, 1], ddof=1)
    assert thoughts == pytest.approx([0.25 / std, -0.25 / std])
    assert answers == pytest.approx([0.75 / std, -0.25 / std, -0.25 / std, -0.25 / std])
    assert others == [0, 0, 0]  # uniform, and alone


def test_scale_batch_is_the_std_over_all_processes():
    shares = [TWO[:1], TWO[1:], ()]
    barrier, sent, found = threading.Barrier(3), [{}, {}, {}], [0.0] * 3

    def process(rank):
        def total(values):
            sent[rank] = values
            barrier.wait()
            summed = {key: sum(s[key] for s in sent) for key in values}
            barrier.wait()
            return summed

        found[rank] = batch_std(shares[rank], 1, total)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert found == pytest.approx([np.std([1, 0, 0, 0, 3, 3, 3, 1], ddof=1)] * 3)


def test_the_batchs_std_does_not_cancel_where_rewards_are_far_from_0():
    far = tree([response(1e8 + r) for r in (0, 1, 0, 1)])
    assert batch_std([far], 0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ddof": 0}, {"scale": "none"}, {"scale": "batch"}, {"scale": "none", "baseline": "leave_one_out"}],
    ids=str,
)
def test_case_b01_a_uniform_pools_advantages_are_exactly_0(settings):
    groups = [[0.3] * 7, [0.05] * 7, [0] * 4, [1] * 4]
    for dtype in (np.float32, np.float64):
        trees = [tree([response(float(dtype(r))) for r in group]) for group in groups]
        assert all(a == 0.0 for responses, _ in advantage(*trees, **settings) for a in responses)
        assert [pools(t, "question")[0].uniform for t in trees] == ["tied", "tied", "all_wrong", "all_right"]


def test_values_that_differ_by_rounding_alone_are_equal():
    rewards = (0.1, 0.2, 0.3)
    assert np.mean(rewards) != np.mean(rewards[::-1])
    thoughts, answers = advantage(tree([thought(*rewards), thought(*rewards[::-1])]))
    assert thoughts == [0, 0] and answers[0] != 0


def test_small_differences_are_not_uniform():
    responses, _ = advantage(tree([response(1 + i * 1e-5) for i in range(3)]))
    assert responses == pytest.approx([-1, 0, 1], abs=1e-6)


def test_pools_name_their_counted_leaves_by_phrasing_and_by_question():
    assert [pool.counted for pool in pools(UNEVEN, "phrasing")] == [2, 1, 1]
    assert [pool.uniform for pool in pools(UNEVEN, "phrasing")] == ["all_right", None, None]
    (question,) = pools(UNEVEN, "question")
    assert (question.counted, question.uniform) == (4, None)
    assert [UNEVEN.nodes[i].reward for i in question.leaves] == [1, 1, 0, 0]


def test_an_ungrown_phrasing_has_no_pool():
    assert len(pools(tree([thought(1)], []), "phrasing")) == 1


def test_all_right_is_every_function_that_applied_paid_in_full():
    t = tree([response(1.2), response(1.2)])
    for node in t.nodes[1:]:
        node.parts = {"math": 1.0, "format": 1.0, "code": None}
    assert pools(t, "question")[0].uniform == "all_right"
    for node in t.nodes[1:]:
        node.parts = {"math": 0.0, "format": 1.0, "code": None}
    assert pools(t, "question")[0].uniform == "tied"


def own_function(tmp_path, body):
    file = tmp_path / "mine.py"
    file.write_text(f"import numpy as np\ndef mine(trees, config):\n    return {body}\n")
    return config(algorithm={"advantage": f"{file}:mine"})


def test_a_function_of_the_users_gives_a_value_a_node_or_a_token(tmp_path):
    c = own_function(tmp_path, "[[0.0, config.algorithm.eps, np.array([1.0, 2.0, 3.0])] for tree in trees]")
    (found,) = advantages([tree([response(1), response(0)])], c)
    assert found[1] == c.algorithm.eps and found[2].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", "returned 0 values; give a list for each of 1 trees"),
        ("None", "returned a NoneType; give a list"),
        ("[None]", "returned a NoneType for tree 0"),
        ("[[0.0, None, 1.0]]", "None for node 1"),
        ("[[0.0, [[1.0], [2.0, 3.0]], 1.0]]", "for node 1"),
        ("[[0.0, 1.0]]", "2 values for tree 0; give one for each of its 3 nodes"),
        ("[[0.0, 1.0, np.ones(4)]]", "node 2 of tree 0; give a finite number, or one for each of its 3 tokens"),
        ("[[0.0, float('nan'), 1.0]]", "nan for node 1"),
    ],
)
def test_what_does_not_fit_the_trees_is_refused(tmp_path, body, message):
    with pytest.raises(ConfigError, match=r"algorithm.advantage: .*mine.py:mine") as error:
        advantages([tree([response(1), response(0)])], own_function(tmp_path, body))
    assert message in str(error.value)


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (80, 0), (85, -0.25), (99, -0.95), (100, -1), (130, -1)])
def test_overlong_penalty_falls_over_the_buffer(length, penalty):
    assert overlong_penalty(length, limit=100, buffer=20) == pytest.approx(penalty)


def test_without_a_buffer_there_is_no_overlong_penalty():
    assert overlong_penalty(101, limit=100, buffer=0) == 0
