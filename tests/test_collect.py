"""What becomes of uniform pools: kept, dropped, replaced within a budget, or expanded by the rephrasings."""

import itertools

import numpy as np
import pytest

from branchwise.config import load_config
from branchwise.rollout.collect import collect
from branchwise.tree import Node, Question, seedling


def sampled(kind, parent, index, finish):
    return Node(kind, parent, index, np.array([5, 6]), np.zeros(2, np.float32), np.ones(2, bool), finish)


def grow(limbs):
    for limb in limbs:
        for k in range(limb.thoughts):
            thought = limb.tree.add(sampled("thought", limb.phrasing, k, "marker"))
            for m in range(limb.answers):
                limb.tree.add(sampled("answer", thought, m, "stop"))


def run(uniform, rewards, count, phrasings=1, **tree):
    """Collect with draw i's leaves rewarded rewards[i] in order (the last pattern repeats)."""
    draws = itertools.count()
    settings = {"uniform": uniform, "thoughts": 2, "answers": 1, "rephrasings": phrasings - 1, **tree}
    config = load_config({"model": {"path": "x"}, "tree": settings, "algorithm": {"pool": "question"}})
    question = Question("q", ("a",) * phrasings, {})

    def draw(number):
        return [seedling(question, [[1]] * phrasings, draw=next(draws), step=1) for _ in range(number)]

    def score(trees):
        for tree in trees:
            pattern = rewards[min(tree.draw, len(rewards) - 1)]
            for place, reward in zip(tree.leaves(), pattern):
                tree.nodes[place].reward = reward

    return collect(draw, grow, score, config, count)


def draws(trees):
    return [tree.draw for tree in trees]


def test_keep_takes_the_first_questions_as_they_come():
    batch = run("keep", [[1, 1], [0, 1], [0, 0]], count=3)
    assert draws(batch.trees) == [0, 1, 2] and not batch.rejected


def test_resample_replaces_uniform_questions_by_further_ones():
    batch = run("resample", [[1, 1], [0, 1], [0, 0], [1, 0], [1, 0]], count=2, resample_budget=3)
    assert (draws(batch.trees), draws(batch.rejected)) == ([1, 3], [0, 2])


def test_resample_stops_at_its_budget_and_keeps_what_it_accepted():
    batch = run("resample", [[0, 1], [0, 0]], count=2, resample_budget=2.5)
    assert (draws(batch.trees), draws(batch.rejected)) == ([0], [1, 2, 3, 4])


def test_resample_replaces_a_pool_that_has_fewer_than_two_rewards():
    batch = run("resample", [[1, None], [0, 1]], count=1)
    assert (draws(batch.trees), draws(batch.rejected)) == ([1], [0])


def test_expand_samples_rephrasings_of_uniform_questions_alone():
    batch = run("expand", [[0, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]], count=2, phrasings=3)
    poor, rich = batch.trees
    assert batch.expanded == {"all_wrong": 1}
    assert [len(list(poor.leaves(n))) for n in poor.phrasings()] == [2, 2, 2]
    assert [poor.nodes[i].reward for i in poor.leaves()] == [0, 0, 1, 0, 0, 0]
    assert len(list(rich.leaves())) == 2


@pytest.mark.parametrize("uniform", ["keep", "drop"])
def test_keep_and_drop_draw_no_question_twice(uniform):
    assert draws(run(uniform, [[1, 1]], count=4).trees) == [0, 1, 2, 3]
