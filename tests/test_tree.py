"""The tree's own arithmetic: children, leaves, paths."""

import numpy as np

from branchwise.tree import Node, Question, Tree, prompt_node


def node(kind, parent, index=0, finish="marker"):
    return Node(kind, parent, index, np.array([1]), np.zeros(1, np.float32), np.ones(1, bool), finish)


def test_leaves_are_answers_unclosed_thoughts_and_responses_but_no_ungrown_phrasing():
    tree = Tree(Question("q", ("a", "b")), 0, 0)
    first, second = tree.add(prompt_node(0, [1])), tree.add(prompt_node(1, [2]))
    closed = tree.add(node("thought", first))
    unclosed = tree.add(node("thought", first, 1, "length"))
    answers = [tree.add(node("answer", closed, m, "stop")) for m in range(2)]
    assert list(tree.leaves()) == [*answers, unclosed]
    assert list(tree.leaves(closed)) == answers
    assert tree.phrasings() == [first, second] and list(tree.leaves(second)) == []
    assert tree.path(answers[1]) == [first, closed, answers[1]]
    assert [tree.nodes[i].unclosed for i in (closed, unclosed)] == [False, True]
