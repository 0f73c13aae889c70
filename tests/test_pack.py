"""Packs: by hand, and what holds of every one."""

import numpy as np
import pytest
from forests import Forest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.algorithm.credit import Credit
from branchwise.policy.pack import build_packs
from branchwise.tree import Node, Question, Tree, prompt_node


def small(context=None, advantage=(0, 0, 1.0, 2.0, 3.0, 4.0), weight=(0, 0, 0.5, 0.25, 0.25, 1.0)):
    """Two phrasings; a thought with two answers, of one token and of two; an unclosed thought under the second."""
    tree = Tree(Question("q", ("a", "b")), draw=0, step=1)
    tree.add(prompt_node(0, [1, 2, 3]))
    tree.add(prompt_node(1, [4, 5]))
    for kind, parent, index, ids in (
        ("thought", 0, 0, [10, 11]),
        ("answer", 2, 0, [20]),
        ("answer", 2, 1, [21, 22]),
        ("thought", 1, 0, [12, 13, 14]),
    ):
        tree.add(Node(kind, parent, index, np.array(ids), -np.array(ids, np.float32), np.ones(len(ids), bool)))
    unit, segment = np.array([-1, -1, 7, 3, 4, 5]), np.array([0, 0, 0, 1, 1, 0])
    return tree, Credit(list(advantage), np.array(weight), unit, segment, context or {0: 0, 1: 0})


def packs_of(*pairs, budget=1000, prune=False):
    trees, credits = zip(*pairs)
    return build_packs(trees, credits, budget=budget, device="cpu", prune=prune)


def test_under_the_original_all_thoughts_hang_on_its_prompt():
    (pack,) = packs_of(small())
    #                            prompt   thought  answer  thought: leaves' last tokens predict nothing
    assert pack.ids_T.tolist() == [1, 2, 3, 10, 11, 21, 12, 13]
    assert pack.position_T.tolist() == [0, 1, 2, 3, 4, 5, 3, 4]
    assert pack.start_J.tolist() == [0, 3, 5, 6]
    assert pack.parent_J.tolist() == [-1, 0, 1, 0]
    assert pack.target_S.tolist() == [10, 11, 20, 21, 22, 12, 13, 14]
    assert pack.source_S.tolist() == [2, 3, 4, 4, 5, 2, 6, 7]


def test_scored_tokens_carry_their_nodes_credit():
    (pack,) = packs_of(small())
    scored = pack.scored
    assert scored.advantage_S.tolist() == [1, 1, 2, 3, 3, 4, 4, 4]
    assert scored.weight_S.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25, 1, 1, 1]
    assert scored.sampler_S.tolist() == [-10, -11, -20, -21, -22, -12, -13, -14]
    assert scored.unit_S.tolist() == [3, 3, 0, 1, 1, 2, 2, 2]
    assert scored.segment_S.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert scored.phrasing_S.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert scored.own_S.tolist() == [True] * 5 + [False] * 3


def test_under_behaviour_each_hangs_on_its_own():
    (pack,) = packs_of(small(context={0: 0, 1: 1}))
    assert pack.ids_T.tolist() == [1, 2, 3, 10, 11, 21, 4, 5, 12, 13]
    assert pack.position_T.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert pack.parent_J.tolist() == [-1, 0, 1, -1, 3]
    assert pack.source_S.tolist()[-3:] == [7, 8, 9]
    assert pack.scored.own_S.all()


def test_an_advantage_may_be_given_for_each_token():
    (pack,) = packs_of(small(advantage=(0, 0, np.array([1.0, -1.0]), 2.0, 3.0, 4.0)))
    assert pack.scored.advantage_S.tolist() == [1, -1, 2, 3, 3, 4, 4, 4]


def test_forced_tokens_are_forwarded_and_not_scored():
    tree, credit = small()
    tree.nodes[2].sampled_T[1] = False
    (pack,) = packs_of((tree, credit))
    assert pack.ids_T.tolist() == [1, 2, 3, 10, 11, 21, 12, 13]
    assert pack.target_S.tolist() == [10, 20, 21, 22, 12, 13, 14]


def test_pruning_leaves_out_what_has_no_advantage():
    (pack,) = packs_of(small(advantage=(0, 0, 1.0, 0.0, 0.0, 0.0)), prune=True)
    assert pack.ids_T.tolist() == [1, 2, 3, 10]
    assert pack.target_S.tolist() == [10, 11]
    assert packs_of(small(advantage=(0, 0, 0.0, 0.0, 0.0, np.zeros(3)))) != []
    assert packs_of(small(advantage=(0, 0, 0.0, 0.0, 0.0, np.zeros(3))), prune=True) == []


def test_pruning_forwards_a_thought_for_its_answers_sake():
    (pack,) = packs_of(small(advantage=(0, 0, 0.0, 0.0, 3.0, 0.0)), prune=True)
    assert pack.ids_T.tolist() == [1, 2, 3, 10, 11, 21]
    assert pack.target_S.tolist() == [21, 22]


def test_pruning_keeps_a_unit_whole():
    tree, credit = small(advantage=(0, 0, np.zeros(2), 0.0, np.array([0.0, 1.0]), 0.0))
    credit.unit[4] = credit.unit[2]
    (pack,) = packs_of((tree, credit), prune=True)
    assert pack.target_S.tolist() == [10, 11, 21, 22]


def test_what_weighs_nothing_is_never_forwarded_but_for_what_is_below():
    (pack,) = packs_of(small(weight=(0, 0, 0, 0, 0.5, 0)))
    assert pack.ids_T.tolist() == [1, 2, 3, 10, 11, 21]
    assert pack.target_S.tolist() == [21, 22]
    assert packs_of(small(weight=(0,) * 6)) == []


def test_a_prompt_without_tokens_is_refused():
    tree, credit = small()
    tree.nodes[0].ids_T = np.array([], np.int64)
    with pytest.raises(ValueError, match="question 'q': the prompt of phrasing 0 has no tokens"):
        packs_of((tree, credit))


def test_prompts_that_begin_alike_share_their_beginning():
    forest = Forest().plant(K=1, M=0, begin=range(20)).plant(K=1, M=0, begin=range(20)).plant(K=1, M=0, begin=range(18))
    forest.trees[1].nodes[0].ids_T[20:] = forest.trees[0].nodes[0].ids_T[20:]
    (pack,) = packs_of(*zip(forest.trees, forest.credits))
    assert pack.ids_T[:18].tolist() == list(range(18))
    roots = [j for j, parent in enumerate(pack.parent_J.tolist()) if parent < 0]
    assert roots == [0] and (pack.parent_J == 0).sum() == 3
    assert pack.ids_T.tolist().count(19) >= 2  # sharing stops where the third prompt differs
    assert pack.position_T[pack.start_J[1]] == 18


def test_equal_prompts_keep_a_token_each_and_short_beginnings_are_not_worth_a_node():
    def nodes(begin, prompt):
        forest = Forest()
        for _ in range(2):
            forest.plant(K=1, M=0, begin=begin, prompt=prompt, thought=(3, 4))
        (pack,) = packs_of(*zip(forest.trees, forest.credits))
        return pack.parent_J.tolist(), pack.start_J.tolist()

    assert nodes(range(30), 0) == ([-1, 0, 1, 0, 3], [0, 29, 30, 32, 33])
    assert nodes(range(15), 4) == ([-1, 0, -1, 2], [0, 19, 21, 40])


def test_whole_trees_fill_packs_up_to_the_budget():
    forest = Forest()
    for _ in range(5):
        forest.plant(K=2, M=0, prompt=10, thought=(5, 6))  # 20 tokens
    packs = packs_of(*zip(forest.trees, forest.credits), budget=45)
    assert [len(pack.target_S) for pack in packs] == [20, 20, 10]


def test_a_tree_beyond_the_budget_is_split_between_thoughts_and_repeats_its_prompt():
    forest = Forest().plant(K=3, M=1, prompt=10, thought=(5, 6), answer=(5, 6), joint=True)
    packs = packs_of(*zip(forest.trees, forest.credits), budget=30)
    assert [len(pack.target_S) for pack in packs] == [20, 10]
    assert all(pack.ids_T[:10].tolist() == forest.trees[0].nodes[0].ids_T.tolist() for pack in packs)
    assert [len(pack.scored.unit_S.unique()) for pack in packs] == [2, 1]
    assert [len(pack.target_S) for pack in packs_of(*zip(forest.trees, forest.credits), budget=1)] == [10, 10, 10]


forests = st.builds(
    lambda seed, shapes: _planted(seed, shapes),
    st.integers(0, 10**6),
    st.lists(
        st.fixed_dictionaries(
            {
                "N": st.integers(0, 2), "K": st.integers(1, 3), "M": st.integers(0, 3), "prompt": st.integers(1, 6),
                "begin": st.sampled_from([(), range(20), range(25)]), "unclosed": st.sampled_from([0.0, 0.5]),
                "forced": st.sampled_from([0.0, 0.5]), "anchor": st.sampled_from(["original", "behaviour"]),
                "joint": st.booleans(),
            }
        ),
        min_size=1, max_size=4,
    ),
)  # fmt: skip


def _planted(seed, shapes):
    forest = Forest(seed)
    for shape in shapes:
        forest.plant(**shape)
    for credit in forest.credits:
        credit.weight[forest.rng.random(len(credit.weight)) < 0.2] = 0
    return forest


@settings(max_examples=60, deadline=None)
@given(forests, st.sampled_from([1, 40, 1000]))
def test_every_weighed_token_is_scored_once_after_its_own_path(forest, budget):
    packs = packs_of(*zip(forest.trees, forest.credits), budget=budget)
    given = [seen for pack in packs for seen in _scored(pack)]
    wanted = []
    for t, place, path in forest.nodes():
        tree, credit = forest.trees[t], forest.credits[t]
        before = np.concatenate([tree.nodes[p].ids_T for p in path[:-1]])
        node = tree.nodes[place]
        for i in np.flatnonzero(node.sampled_T) if credit.weight[place] else []:
            weight, unit = float(np.float32(credit.weight[place])), (t, credit.unit[place])
            wanted.append((before.tolist() + node.ids_T[:i].tolist(), int(node.ids_T[i]), weight, unit))
    assert _numbered(given) == _numbered(wanted)


def _scored(pack):
    """For each scored token: the tokens on the path before it, itself, its weight, and its unit (across packs)."""
    starts = [*pack.start_J.tolist(), len(pack.ids_T)]
    for source, target, weight, unit in zip(
        pack.source_S.tolist(), pack.target_S.tolist(), pack.scored.weight_S.tolist(), pack.scored.unit_S.tolist()
    ):
        j = int(np.searchsorted(pack.start_J.numpy(), source, side="right")) - 1
        path, end = [], source + 1
        while j >= 0:
            path = pack.ids_T[starts[j] : end].tolist() + path
            j = pack.parent_J[j].item()
            end = starts[j + 1]
        assert pack.position_T[source] == len(path) - 1
        yield path, target, weight, (id(pack), unit)


def _numbered(rows):
    """Units numbered as they appear."""
    order = {}
    return [(path, target, weight, order.setdefault(unit, len(order))) for path, target, weight, unit in rows]
