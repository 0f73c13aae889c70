"""From trees and credits to packs: flat tensors in which each tree token stands once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from branchwise.algorithm.credit import Credit
from branchwise.algorithm.objective import Scored
from branchwise.tree import Images, Tree

WORTHWHILE = 16
"""The fewest tokens that prompts of a pack must have in common at their beginning to share them."""


@dataclass(slots=True)
class Row:
    """Trees in one row. A node's tokens are contiguous; nodes stand depth-first, so that its descendants follow it."""

    ids_T: Tensor
    """int64 [T]."""
    position_T: Tensor
    """int64 [T]: distance from the root of the token's path."""
    start_J: Tensor
    """int64 [J]: where each node's tokens begin (J nodes, depth-first)."""
    parent_J: Tensor
    """int64 [J]: place of the node's parent among the pack's nodes; -1 for a root."""

    def feed(self, place_RL: Tensor) -> dict[str, Any]:
        """What a backbone is given for the tokens at these places, positions apart where they count from 0."""
        return {"input_ids": self.ids_T[place_RL]}

    def part(self, place_T: Tensor, start_J: Tensor, parent_J: Tensor) -> Row:
        """The tokens at these places as a row of their own."""
        return Row(self.ids_T[place_T], self.position_T[place_T], start_J, parent_J)

    def whole_J(self) -> np.ndarray:
        """bool [J]: nodes whose tokens see each other in both directions."""
        return np.zeros(len(self.start_J), bool)


@dataclass(frozen=True, slots=True)
class Pictured:
    """A prompt with images."""

    images: Images
    start: int
    """Where in the row it begins."""
    end: int
    tail: int
    """Where all that hangs on it ends."""


@dataclass(slots=True)
class Pack(Row):
    """A row and what of it is scored.

    The last token of a leaf predicts nothing and is not forwarded; a leaf of one token is no node here, only a target.
    """

    source_S: Tensor
    """int64 [S]: the position in the row that predicts the scored token; for a node's first, its parent's last."""
    target_S: Tensor
    """int64 [S]: the id of the scored token."""
    scored: Scored
    pictured: list[Pictured]
    """The prompts that have images."""
    last: list[Images] = field(default_factory=list)
    """Images that no later pack of the optimizer step has."""


@dataclass(slots=True)
class Branch:
    """A prompt with some of what hangs on it."""

    tree: Tree
    credit: Credit
    scored: np.ndarray
    """bool [nodes]: whether the node's sampled tokens are scored."""
    prompt: int
    """Place of the phrasing whose prompt it is."""
    limbs: list[list[int]]
    """For each thought (or response) kept, its place and those kept below it, depth-first."""

    @property
    def tokens(self) -> int:
        return _length(self.tree, [self.prompt]) + sum(_length(self.tree, limb) for limb in self.limbs)


def build_packs(
    trees: Sequence[Tree], credits: Sequence[Credit], *, budget: int, device: torch.device | str, prune: bool
) -> list[Pack]:
    """Pack an optimizer step's trees, each sampled token of weight in it scored exactly once.

    Args:
        budget: tokens a pack, counted before prompts share their beginnings. A tree within it is never split; a larger
            one is split between thoughts, each part repeating the prompt. A thought with its answers is never split.
        prune: leave out what has advantage 0 throughout, with all below it; right where the loss has no KL or entropy.

    Raises:
        ValueError: a prompt without tokens.
    """
    packs: list[list[Branch]] = []
    room = 0
    for tree, credit in zip(trees, credits, strict=True):
        for part in _parts(_branches(tree, credit, prune), budget):
            size = sum(branch.tokens for branch in part)
            if size > room:
                packs.append([])
                room = budget
            packs[-1] += part
            room -= size
    made = [_pack(branches, device) for branches in packs]
    last = {id(p.images): (pack, p.images) for pack in made for p in pack.pictured}
    for pack, images in last.values():
        pack.last.append(images)
    return made


def default_budget(device: torch.device) -> int:
    """Tokens a pack: on a CPU larger ones are no quicker, for activations then leave its caches."""
    return 2048 if device.type == "cpu" else 16384


def _length(tree: Tree, places: list[int]) -> int:
    return sum(len(tree.nodes[place].ids_T) for place in places)


def _branches(tree: Tree, credit: Credit, prune: bool) -> list[Branch]:
    """What is forwarded of a tree, by prompt: scored nodes and all above them."""
    scored = _scored(tree, credit, prune)
    branches: dict[int, Branch] = {}
    for phrasing in tree.phrasings():
        limbs = [kept for child in tree.children[phrasing] if (kept := _kept(tree, scored, child))]
        if limbs:
            prompt = credit.context[phrasing]
            branches.setdefault(prompt, Branch(tree, credit, scored, prompt, [])).limbs.extend(limbs)
    return list(branches.values())


def _scored(tree: Tree, credit: Credit, prune: bool) -> np.ndarray:
    """bool [nodes]: nodes of weight; under `prune` only those of a unit with some advantage."""
    weighed = np.array([node.sampled_T.any() for node in tree.nodes]) & (credit.weight != 0)
    if not prune:
        return weighed
    live = weighed & np.array([np.any(advantage != 0) for advantage in credit.advantage])
    return weighed & np.isin(credit.unit, credit.unit[live])


def _kept(tree: Tree, scored: np.ndarray, place: int) -> list[int]:
    """`place` and what is kept below it, depth-first; nothing, where nothing there is scored."""
    below = [p for child in tree.children[place] for p in _kept(tree, scored, child)]
    return [place, *below] if below or scored[place] else []


def _parts(branches: list[Branch], budget: int) -> Iterator[list[Branch]]:
    """A tree whole where it is within the budget, else in parts that are, if one thought and its prompt are."""
    if sum(branch.tokens for branch in branches) <= budget:
        if branches:
            yield branches
        return
    for b in branches:
        limbs: list[list[int]] = []
        room = 0
        for limb in b.limbs:
            size = _length(b.tree, limb)
            if limbs and size > room:
                yield [Branch(b.tree, b.credit, b.scored, b.prompt, limbs)]
                limbs = []
            if not limbs:
                room = budget - _length(b.tree, [b.prompt])
            limbs.append(limb)
            room -= size
        yield [Branch(b.tree, b.credit, b.scored, b.prompt, limbs)]


@dataclass(slots=True)
class _Growing:
    """A pack in the making: numpy pieces, a list entry for each node."""

    ids: list[np.ndarray] = field(default_factory=list)
    position: list[np.ndarray] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    length: int = 0

    def add(self, ids_T: np.ndarray, above: _Above) -> _Above:
        """Append a node's tokens below `above`; without tokens it is no node, and what is below it hangs on `above`."""
        if not len(ids_T):
            return above
        self.ids.append(ids_T)
        self.position.append(above.depth + np.arange(len(ids_T)))
        self.start.append(self.length)
        self.parent.append(above.node)
        self.length += len(ids_T)
        return _Above(len(self.start) - 1, self.length - 1, above.depth + len(ids_T))


@dataclass(frozen=True, slots=True)
class _Above:
    """What a node hangs on."""

    node: int
    """Its place among the pack's nodes; -1 for nothing."""
    last: int
    """The position in the row of its last token."""
    depth: int
    """Tokens on the path down to it, its own included."""


def _pack(branches: list[Branch], device: torch.device | str) -> Pack:
    row = _Growing()
    prompts = [branch.tree.nodes[branch.prompt].ids_T for branch in branches]
    # equal ids do not make equal images
    shared = 0 if any(branch.tree.images for branch in branches) else _common_beginning(prompts)
    beginning = row.add(prompts[0][:shared], _Above(-1, -1, 0))
    scores: list[dict[str, np.ndarray]] = []
    pictured = []
    for number, (branch, ids_T) in enumerate(zip(branches, prompts)):
        if not len(ids_T):
            raise ValueError(
                f"question {branch.tree.question.id!r}: the prompt of phrasing {branch.prompt} has no tokens; "
                "it needs one at least, to predict the first sampled token"
            )
        start = row.length
        prompt = row.add(ids_T[shared:], beginning)
        end = row.length
        for limb in branch.limbs:
            scores += _add_limb(row, branch, limb, prompt, number)
        if branch.tree.images:
            pictured.append(Pictured(branch.tree.images, start, end, row.length))
    return _to_tensors(row, scores, pictured, device)


def _common_beginning(prompts: list[np.ndarray]) -> int:
    """Tokens that all prompts begin with, if worthwhile; each keeps at least one of its own."""
    shortest = min(len(ids_T) for ids_T in prompts) - 1
    if len(prompts) < 2 or shortest < WORTHWHILE:
        return 0
    same = np.all([ids_T[:shortest] == prompts[0][:shortest] for ids_T in prompts], axis=0)
    shared = shortest if same.all() else int(np.argmin(same))
    return shared if shared >= WORTHWHILE else 0


def _add_limb(
    row: _Growing, branch: Branch, limb: list[int], prompt: _Above, number: int
) -> list[dict[str, np.ndarray]]:
    """Append a thought and what is below it; returns its scored tokens' columns, a dict for each node."""
    tree, credit = branch.tree, branch.credit
    phrasing = tree.nodes[limb[0]].parent
    above = {phrasing: prompt}
    parents = {tree.nodes[place].parent for place in limb}
    scores = []
    for place in limb:
        node = tree.nodes[place]
        top = above[node.parent]
        ids_T = node.ids_T if place in parents else node.ids_T[:-1]
        start = row.length
        above[place] = row.add(ids_T, top)
        if branch.scored[place]:
            token_S = np.flatnonzero(node.sampled_T)
            n = len(token_S)
            scores.append(
                {
                    "source": np.where(token_S == 0, top.last, start + token_S - 1),
                    "target": node.ids_T[token_S],
                    "advantage": np.broadcast_to(credit.advantage[place], len(node.ids_T))[token_S],
                    "weight": np.full(n, credit.weight[place]),
                    "sampler": node.logprobs_T[token_S],
                    "tree": np.full(n, number),
                    "unit": np.full(n, credit.unit[place]),
                    "segment": np.full(n, credit.segment[place]),
                    "phrasing": np.full(n, tree.nodes[phrasing].index),
                    "own": np.full(n, branch.prompt == phrasing),
                }
            )
    return scores


def _to_tensors(
    row: _Growing, scores: list[dict[str, np.ndarray]], pictured: list[Pictured], device: torch.device | str
) -> Pack:
    column = {name: np.concatenate([score[name] for score in scores]) for name in scores[0]}
    _, unit_S = np.unique(np.stack([column["tree"], column["unit"]]), axis=1, return_inverse=True)

    def integer(values: np.ndarray | list[int]) -> Tensor:
        return torch.as_tensor(np.asarray(values, np.int64), device=device)

    def real(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values.astype(np.float32), device=device)

    return Pack(
        ids_T=integer(np.concatenate(row.ids)),
        position_T=integer(np.concatenate(row.position)),
        start_J=integer(row.start),
        parent_J=integer(row.parent),
        source_S=integer(column["source"]),
        target_S=integer(column["target"]),
        scored=Scored(
            advantage_S=real(column["advantage"]),
            weight_S=real(column["weight"]),
            sampler_S=real(column["sampler"]),
            unit_S=integer(unit_S.reshape(-1)),
            segment_S=integer(column["segment"]),
            phrasing_S=integer(column["phrasing"]),
            own_S=torch.as_tensor(column["own"], device=device),
        ),
        pictured=pictured,
    )
