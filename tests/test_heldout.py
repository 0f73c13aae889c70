"""Held-out mean and its interval."""

import numpy as np
import pytest

from branchwise.evaluate.heldout import held_out_mean
from branchwise.tree import Node, Question, Tree, prompt_node


def tree(*rewards):
    t = Tree(Question("q", ("a",)), 0, -1)
    root = t.add(prompt_node(0, [1]))
    for k, reward in enumerate(rewards):
        ids = np.array([2])
        t.add(Node("response", root, k, ids, np.zeros(1, np.float32), np.ones(1, bool), "stop", reward))
    return t


def test_each_question_counts_once_however_many_samples_it_has():
    # means 0.5, 1 and 0: 0.5 over questions, though 3 of 5 leaves are right
    outcome = held_out_mean([tree(1, 0), tree(1, 1), tree(0)])
    assert outcome.mean == pytest.approx(0.5) and outcome.n == 3


def test_missing_rewards_are_counted_and_count_nowhere():
    outcome = held_out_mean([tree(1, None), tree(None, None), tree(0)])
    assert (outcome.mean, outcome.n, outcome.missing) == (0.5, 2, 3)


def test_the_interval_is_that_of_a_mean_of_coin_throws():
    # 100 questions, half right: the standard error is 0.05, so 95% reach about 0.098 to either side
    outcome = held_out_mean([tree(i % 2) for i in range(100)])
    assert outcome.low == pytest.approx(0.402, abs=0.015) and outcome.high == pytest.approx(0.598, abs=0.015)


def test_no_reward_at_all_is_no_mean():
    assert held_out_mean([tree(None)]) is None
