"""Trees in two stages, for engines that complete prompts: K thoughts from a prompt, then M answers from each thought.

What a thought is, is decided here alone, by `Marker`; an engine's own stop strings only spare it tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from branchwise.errors import ConfigError
from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.keyed_random import node_key
from branchwise.rollout.marker import Marker
from branchwise.tree import Finish, Kind, Node

SEEDS = (1 << 62) - 1
"""Engines take 64-bit seeds with a sign, and add the sample's number."""


class BadCompletion(ValueError):
    """An engine gave what it cannot have sampled."""


@dataclass(frozen=True, slots=True)
class Request:
    """`count` completions of one prompt."""

    prompt: list[int]
    count: int
    seed: int
    """Of the first; the next have the following ones."""
    limit: int
    """Tokens each may have."""
    index: int = 0
    """k or m of the first."""
    marker: str | None = None
    """Text at which they end, kept in them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine drew after a prompt."""

    ids: list[int]
    logprobs: list[float]
    """Of the sampling distribution, one a token."""
    finish: Literal["stop", "length"]
    marked: bool = False
    """Whether the engine stopped because it saw the marker."""

    def followed_by(self, more: Completion) -> Completion:
        return Completion(self.ids + more.ids, self.logprobs + more.logprobs, more.finish, more.marked)


@dataclass(slots=True)
class Stretch:
    """A thought, an answer or a response while it is sampled."""

    kind: Kind
    index: int
    ids: list[int]
    logprobs: list[float]
    finish: Finish
    forced: int = 0
    """How many of its last tokens were not drawn."""
    answers: list[Stretch] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return self.kind == "thought" and self.finish in ("marker", "forced")

    def node(self, parent: int) -> Node:
        sampled_T = np.arange(len(self.ids)) < len(self.ids) - self.forced
        ids_T, logprobs_T = np.asarray(self.ids, np.int64), np.asarray(self.logprobs, np.float32)
        return Node(self.kind, parent, self.index, ids_T, logprobs_T, sampled_T, self.finish)


class Stages:
    """Turns limbs into requests and completions into nodes.

    Args:
        tokenizer: the policy's.
        vocabulary: V, the number of the model's logits.
        stop: every id that ends a turn.
        positions: the most tokens of a prompt and its response that the engine takes.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, stop: frozenset[int], positions: int) -> None:
        self.tokenizer, self.vocabulary, self.stop, self.positions = tokenizer, vocabulary, stop, positions
        self._markers: dict[str, Marker] = {}

    def marker(self, text: str | None) -> Marker | None:
        if text is None:
            return None
        if text not in self._markers:
            self._markers[text] = Marker(text, self.tokenizer, self.vocabulary)
        return self._markers[text]

    def check(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        """Whether every limb can be grown.

        Raises:
            ConfigError: answers without a marker, an empty prompt, or one that leaves too little room.
        """
        marker = self.marker(sampling.marker)
        limit = sampling.max_thought_tokens + sampling.max_answer_tokens
        if marker and sampling.force_close:
            limit += len(marker.ids)
        for limb in limbs:
            if marker is None and limb.answers > 1:
                raise ConfigError(
                    f"tree.answers: {limb.answers} answers from a thought need tree.marker, which ends it; it is null"
                )
            if limb.tree.images:
                raise ConfigError(
                    f"engine: question {limb.tree.question.id!r} has images, which only engine: transformers takes"
                )
            prompt = len(limb.tree.nodes[limb.phrasing].ids_T)
            if not prompt:
                raise ConfigError(f"question {limb.tree.question.id!r}: phrasing {limb.phrasing} has no tokens")
            if prompt + limit > self.positions:
                raise ConfigError(
                    f"sampling.max_thought_tokens: a prompt of {prompt} tokens and responses of up to {limit} pass the "
                    f"engine's {self.positions} positions; lower it, sampling.max_answer_tokens or "
                    "data.max_prompt_tokens, or serve the model with more"
                )

    def plan(self, limbs: Sequence[Limb], sampling: Sampling) -> list[tuple[Limb, Request]]:
        """The requests for the limbs' thoughts (responses); a phrasing that was grown before gets further ones."""
        grown: Counter[tuple[int, int]] = Counter()
        planned = []
        for limb in limbs:
            place = (id(limb.tree), limb.phrasing)
            first = len(limb.tree.children[limb.phrasing]) + grown[place]
            grown[place] += limb.thoughts
            planned.append((limb, self._first(limb, sampling, first)))
        return [(limb, request) for limb, request in planned if request.count]

    def _first(self, limb: Limb, sampling: Sampling, k: int) -> Request:
        limit = sampling.max_thought_tokens
        limit += sampling.max_answer_tokens if sampling.marker is None else 0
        prompt = limb.tree.nodes[limb.phrasing].ids_T.tolist()
        return Request(prompt, limb.thoughts, _seed(limb, sampling, 0, -1) + k, limit, k, sampling.marker)

    def second(self, limb: Limb, thought: Stretch, sampling: Sampling) -> Request:
        """The request for a closed thought's answers."""
        prompt = limb.tree.nodes[limb.phrasing].ids_T.tolist() + thought.ids
        seed = _seed(limb, sampling, thought.index, 0)
        return Request(prompt, limb.answers, seed, sampling.max_answer_tokens, 0)

    def thoughts(self, request: Request, completions: Sequence[Completion], sampling: Sampling) -> list[Stretch]:
        """Thoughts (responses) from what was drawn: cut where the marker ends, closed by force if asked for."""
        make = self._response if sampling.marker is None else self._thought
        return [make(request.index + i, completion, sampling) for i, completion in enumerate(completions)]

    def answers(self, completions: Sequence[Completion], sampling: Sampling) -> list[Stretch]:
        return [self._whole("answer", m, completion, sampling) for m, completion in enumerate(completions)]

    def checked(self, request: Request, completions: Sequence[Completion], sampling: Sampling) -> Sequence[Completion]:
        """The completions, if they can be what was asked for.

        Raises:
            BadCompletion: too few, empty, cut short, too long, or with ids or log-probs that cannot be.
        """
        if sampling.temperature == 0 and len(completions) == 1:
            completions = list(completions) * request.count  # greedy ones are all alike, and asked for once
        if len(completions) != request.count:
            raise BadCompletion(f"{len(completions)} completions instead of {request.count}")
        for c in completions:
            if not c.ids or len(c.ids) != len(c.logprobs):
                raise BadCompletion(f"a completion of {len(c.ids)} tokens with {len(c.logprobs)} log-probs")
            if len(c.ids) > request.limit or (c.finish == "length" and len(c.ids) < request.limit):
                raise BadCompletion(f"{len(c.ids)} tokens, finished by a limit of {request.limit}")
            if c.finish == "stop" and not c.marked and c.ids[-1] not in self.stop:
                raise BadCompletion(f"a completion that stopped at token {c.ids[-1]}, which ends nothing")
            if not all(0 <= i < self.vocabulary for i in c.ids):
                raise BadCompletion("ids outside the vocabulary; does the server serve the policy's model?")
            if not all(math.isfinite(p) and p <= 1e-4 for p in c.logprobs):
                raise BadCompletion("log-probs that are not finite, or above 0")
        return completions

    def rest_of(self, request: Request, completion: Completion, number: int) -> Request | None:
        """What is left to sample where the engine saw a marker that is none; None: nothing is."""
        left = request.limit - len(completion.ids)
        if not completion.marked or left <= 0 or self._end(request.marker, completion.ids) is not None:
            return None
        if completion.ids[-1] in self.stop:
            return None
        seed = (request.seed + number + (len(completion.ids) << 20)) & SEEDS
        return Request(request.prompt + completion.ids, 1, seed, left, marker=request.marker)

    def _response(self, index: int, completion: Completion, sampling: Sampling) -> Stretch:
        return self._whole("response", index, completion, sampling)

    def _thought(self, index: int, completion: Completion, sampling: Sampling) -> Stretch:
        thought = self._whole("thought", index, completion, sampling)
        marker = self.marker(sampling.marker)
        assert marker is not None
        end = self._end(sampling.marker, thought.ids)
        if end is not None:
            return Stretch("thought", index, thought.ids[:end], thought.logprobs[:end], "marker")
        if not sampling.force_close:
            return thought
        forced = len(marker.ids)
        return Stretch("thought", index, thought.ids + marker.ids, thought.logprobs + [0.0] * forced, "forced", forced)

    def _whole(self, kind: Kind, index: int, completion: Completion, sampling: Sampling) -> Stretch:
        # at temperature 0 tokens are drawn with certainty
        logprobs = [0.0] * len(completion.ids) if sampling.temperature == 0 else completion.logprobs
        finish: Finish = "stop" if completion.ids[-1] in self.stop else "length"
        return Stretch(kind, index, completion.ids, logprobs, finish)

    def _end(self, text: str | None, ids: list[int]) -> int | None:
        """How many tokens there are up to the one that completes the marker; None: it is not complete."""
        marker = self.marker(text)
        if marker is None:
            return None
        flagged = (length for length in range(1, len(ids) + 1) if marker.may_end_V[ids[length - 1]])
        return next((length for length in flagged if marker.ends(ids[:length])), None)


def plant(limb: Limb, thoughts: Sequence[Stretch]) -> None:
    """Add what was sampled for a limb to its tree."""
    for thought in thoughts:
        place = limb.tree.add(thought.node(limb.phrasing))
        for answer in thought.answers:
            limb.tree.add(answer.node(place))


def _seed(limb: Limb, sampling: Sampling, k: int, m: int) -> int:
    tree = limb.tree
    key = node_key(sampling.seed, tree.step, tree.draw, tree.nodes[limb.phrasing].index, k, m)
    return key & SEEDS
