"""Trees written down by their rewards, for tests of what is computed from them."""

from dataclasses import dataclass

import numpy as np

from branchwise.config import load_config
from branchwise.tree import Node, Question, Tree, prompt_node


@dataclass
class Branch:
    """A thought with its answers' rewards, or (no answers) a leaf of its own with `reward`."""

    answers: tuple = ()
    reward: float | None = None
    kind: str = "thought"
    finish: str = "marker"
    tokens: int = 3
    answer_tokens: int | tuple = 2
    forced: int = 0
    """So many tokens at its end were not sampled."""


def thought(*rewards, **more):
    return Branch(rewards, **more)


def unclosed(reward, **more):
    return Branch(reward=reward, finish="length", **more)


def response(reward, **more):
    return Branch(reward=reward, kind="response", finish="stop", **more)


def tree(*phrasings):
    """Each phrasing is a list of branches."""
    t = Tree(Question("q", ("text",) * len(phrasings)), draw=0, step=1)
    for n in range(len(phrasings)):
        t.add(prompt_node(n, [7] * (3 + n)))
    for n, branches in enumerate(phrasings):
        for k, b in enumerate(branches):
            above = t.add(_node(b.kind, n, k, b.tokens, b.finish, b.reward, b.forced))
            lengths = b.answer_tokens if isinstance(b.answer_tokens, tuple) else (b.answer_tokens,) * len(b.answers)
            for m, (reward, length) in enumerate(zip(b.answers, lengths, strict=True)):
                t.add(_node("answer", above, m, length, "stop", reward))
    return t


def _node(kind, parent, index, tokens, finish, reward, forced=0):
    sampled_T = np.arange(tokens) < tokens - forced
    ids_T, logprobs_T = np.arange(tokens), np.full(tokens, -1.0, np.float32)
    return Node(kind, parent, index, ids_T, logprobs_T, sampled_T, finish, reward)


def config(**sections):
    return load_config({"model": {"path": "somewhere"}, **sections})


def of_kind(t, values, *kinds):
    """The values of a tree's nodes of these kinds, in order."""
    return [value for node, value in zip(t.nodes, values) if node.kind in kinds]
