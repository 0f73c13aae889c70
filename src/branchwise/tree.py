"""The tree of rollouts: plain data. Everything left of packing reads and fills it.

A tree is one question. Its nodes are phrasings (the prompts, roots), the thoughts sampled after
them and the answers sampled after those; without a marker, whole responses stand where thoughts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["phrasing", "thought", "answer", "response"]
Finish = Literal["marker", "stop", "length", "forced"]
Prompt = str | list[dict[str, Any]]
"""A text, or chat messages; `{"type": "image"}` among a message's parts is where the next image stands."""


class Images:
    """A question's images as the model's processor prepared them; its phrasings share them.

    Args:
        tensors: what the processor gave beside token ids, by name. They stay in the process that encodes them.
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def __reduce__(self) -> tuple[type[Images], tuple[dict[str, Any]]]:
        return Images, ({},)


@dataclass(frozen=True, slots=True)
class Question:
    """One dataset row."""

    id: str
    phrasings: tuple[Prompt, ...]
    """The wordings as prompts, complete with system prompt and template; the first is the original."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Every column of the row, as reward functions receive them; the reference answer is `answer`."""
    images: tuple[Any, ...] = ()
    """Its pictures (`data.images.Picture`), in the order in which they stand in each phrasing."""


@dataclass(slots=True)
class Node:
    """A stretch of tokens that all leaves below it share."""

    kind: Kind
    parent: int
    """Place of the parent in `Tree.nodes`; -1 for a phrasing."""
    index: int
    """n, k or m: which phrasing, thought or answer this is among its siblings."""
    ids_T: np.ndarray
    """int64 token ids, exactly as rendered or sampled: never decoded and encoded again."""
    logprobs_T: np.ndarray
    """float32 log μ: the sampling distribution's log-probs; all 0 for a phrasing."""
    sampled_T: np.ndarray
    """bool: False for prompt tokens and for forced ones (`force_close`)."""
    finish: Finish | None = None
    """From the engine: marker completed, EOS drawn, limit reached, or marker forced; None for a phrasing."""
    reward: float | None = None
    """R of a leaf; None where it is missing, or where the node is no leaf."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """What each reward function paid, by name."""
    reason: str | None = None
    """Why the reward is missing."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What reward functions wrote of a leaf for the rollout log (`log_extra`), by column."""

    @property
    def unclosed(self) -> bool:
        """A thought that met EOS or its limit before the marker."""
        return self.kind == "thought" and self.finish in ("stop", "length")


@dataclass(slots=True)
class Tree:
    """One question with all that was sampled for it."""

    question: Question
    draw: int
    """Its place in the stream of questions drawn for this run: it keys the random numbers."""
    step: int
    """The training step that it is sampled for: it keys the random numbers."""
    staleness: int = 0
    """Updates between the weights that sampled it and those that it is trained on (`train.async_depth`)."""
    nodes: list[Node] = field(default_factory=list)
    """Parents stand before their children."""
    children: list[list[int]] = field(default_factory=list)
    images: Images | None = None
    """What stands at the image placeholders of its prompts; None where there are none."""

    def add(self, node: Node) -> int:
        """Append a node and return its place."""
        place = len(self.nodes)
        self.nodes.append(node)
        self.children.append([])
        if node.parent >= 0:
            self.children[node.parent].append(place)
        return place

    def phrasings(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if node.parent < 0]

    def leaves(self, below: int | None = None) -> Iterator[int]:
        """Places of the leaves (under one node), in order; an ungrown phrasing is no leaf."""
        if below is None:
            for root in self.phrasings():
                yield from self.leaves(root)
        elif self.children[below]:
            for child in self.children[below]:
                yield from self.leaves(child)
        elif self.nodes[below].parent >= 0:
            yield below

    def path(self, place: int) -> list[int]:
        """Places from the phrasing down to `place`, both included."""
        path = [place]
        while (parent := self.nodes[path[-1]].parent) >= 0:
            path.append(parent)
        return path[::-1]


def prompt_node(index: int, ids: list[int]) -> Node:
    """A phrasing rendered to token ids."""
    ids_T = np.asarray(ids, dtype=np.int64)
    return Node("phrasing", -1, index, ids_T, np.zeros(len(ids), np.float32), np.zeros(len(ids), bool))


def seedling(
    question: Question, prompt_ids: Sequence[list[int]], *, draw: int, step: int, images: Images | None = None
) -> Tree:
    """A tree of prompts alone."""
    tree = Tree(question, draw, step, images=images)
    for n, ids in enumerate(prompt_ids):
        tree.add(prompt_node(n, ids))
    return tree
