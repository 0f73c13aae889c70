"""Decoding of rows that fork: thoughts from prompts, answers from thoughts, all in one batch that is kept full."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from branchwise.rollout.cache import ROOM, admit, admits_gaps, drop_columns, forked, reorder
from branchwise.rollout.draw import draw
from branchwise.rollout.engine import Sampling
from branchwise.rollout.keyed_random import uniform
from branchwise.rollout.marker import Marker
from branchwise.rollout.prefill import Beginning, Decoder, Prefilled, Prompt, prefill
from branchwise.tree import Finish, Kind, Node

ROW_STATE = ("slot_R", "length_R", "limit_R", "position_R", "key_R", "forced_R", "token_R")
FREE = -1
"""Of a row that draws its tokens; a row that is being closed counts the marker's tokens instead."""


@dataclass(slots=True)
class Draft:
    """A node to be sampled."""

    kind: Kind
    index: int
    key: int
    """Of its random numbers."""
    limit: int
    """Tokens it may draw."""
    answers: list[Draft] = field(default_factory=list)
    """Sampled if this thought closes."""
    slot: int = -1
    """Its row in the records of what was drawn."""
    finish: Finish | None = None
    length: int = 0
    forced: int = 0
    """How many of its last tokens were not drawn."""
    ids_T: np.ndarray | None = None
    logprobs_T: np.ndarray | None = None

    @property
    def closed(self) -> bool:
        return self.kind == "thought" and self.finish in ("marker", "forced")

    @property
    def leaves(self) -> int:
        """The most rows it can become."""
        return max(1, len(self.answers))

    def count(self, id: int | None) -> int:
        """How often it holds a token; 0 for no token, or where it was not sampled."""
        return 0 if id is None or self.ids_T is None else int((self.ids_T == id).sum())

    def node(self, parent: int) -> Node:
        assert self.ids_T is not None and self.logprobs_T is not None
        sampled_T = np.arange(self.length) < self.length - self.forced
        return Node(self.kind, parent, self.index, self.ids_T, self.logprobs_T, sampled_T, self.finish)


@dataclass(frozen=True, slots=True)
class Endings:
    """What ends a node."""

    stop: frozenset[int]
    """Every id that ends a turn."""
    marker: Marker | None
    watched_V: Tensor
    """bool [V]: ids after which a row is looked at: those above, and those that the marker may end in."""

    @classmethod
    def of(cls, stop: frozenset[int], marker: Marker | None, decoder: Decoder) -> Endings:
        watched_V = torch.zeros(decoder.vocabulary, dtype=torch.bool) if marker is None else marker.may_end_V.clone()
        watched_V[[i for i in stop if i < decoder.vocabulary]] = True
        return cls(stop, marker, watched_V.to(decoder.device))

    def finish(self, draft: Draft, ids_T: list[int]) -> Finish | None:
        """How a draft ends with the newest of its tokens, if it does; asked only where it may."""
        marker = self.marker
        if draft.kind == "thought" and marker is not None and marker.may_end_V[ids_T[-1]] and marker.ends(ids_T):
            return "marker"
        if ids_T[-1] in self.stop:
            return "stop"
        return "length" if len(ids_T) == draft.limit else None


class Growth:
    """The thoughts of some prompts and their answers, sampled together in at most so many rows.

    Thoughts wait until rows are free for all their answers. Where the cache admits gaps they join rows that are under
    way, so that the batch stays full; else the next begin when all rows have finished.

    Args:
        prompts: with the thoughts that follow them.
        beginning: what all prompts begin with.
        max_rows: as many as the thought with most answers needs, or more.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[tuple[Prompt, list[Draft]]],
        beginning: Beginning,
        sampling: Sampling,
        endings: Endings,
        max_rows: int,
    ) -> None:
        self.decoder, self.beginning = decoder, beginning
        self.sampling, self.endings, self.max_rows = sampling, endings, max_rows
        self.prompts = [prompt for prompt, _ in prompts]
        self.waiting = deque((b, thought) for b, (_, thoughts) in enumerate(prompts) for thought in thoughts)
        self.drafts = [node for _, thought in self.waiting for node in (thought, *thought.answers)]
        for slot, draft in enumerate(self.drafts):
            draft.slot = slot
        device = decoder.device
        forced = endings.marker.ids if endings.marker and sampling.force_close else []
        self.forced = self._tensor(forced)
        longest = max(draft.limit for draft in self.drafts) + len(forced)
        self.ids_NL = torch.zeros(len(self.drafts), longest, dtype=torch.int64, device=device)
        self.logprobs_NL = torch.zeros(len(self.drafts), longest, dtype=torch.float32, device=device)
        self.prefilled: dict[int, tuple[Prefilled, int]] = {}
        """By prompt that has been forwarded: its row there."""
        self.gaps = admits_gaps(beginning.cache)
        self.free = max_rows
        """Rows that no thought has claimed, for itself or for its answers."""
        self._empty()

    slot_R: Tensor
    """Of each row's draft, in the records of what was drawn."""
    length_R: Tensor
    """Tokens that the draft has."""
    limit_R: Tensor
    position_R: Tensor
    """Of the next token."""
    key_R: Tensor
    forced_R: Tensor
    """FREE, or how many of the marker's tokens stand."""
    token_R: Tensor
    """The last drawn."""

    @torch.no_grad()
    def run(self) -> None:
        """Sample until every row has finished; the drafts then hold their tokens."""
        while self.waiting or len(self.slot_R):
            self._admit()
            self._draw()
            finished = self._finished()
            leaves = {row: draft for row, draft in finished if not draft.closed}
            if leaves:
                self._take(_closed_up(len(self.slot_R), leaves.keys()))
                self.free += sum(draft.leaves for draft in leaves.values())
            if len(self.slot_R):
                self._forward()
                if len(leaves) < len(finished):
                    self._fork()
        self._cut()

    def _empty(self) -> None:
        """No rows."""
        self.cache: Any = None
        self.mask_RC: Tensor | None = None
        """Which columns of the cache hold tokens of the row; None: all."""
        self.logits_RV = torch.empty(0, device=self.decoder.device)
        for name in ROW_STATE:
            setattr(self, name, self._tensor([]))

    def _admit(self) -> None:
        """Let waiting thoughts begin once a quarter of the rows is free; without gaps, once all are."""
        under_way = len(self.slot_R) > 0
        if not self.waiting or (under_way and not (self.gaps and self.free >= self.max_rows // 4)):
            return
        if not under_way:
            self._empty()
        taken: list[tuple[int, Draft]] = []
        while self.waiting and self.waiting[0][1].leaves <= self.free:
            if taken and not self.gaps and self._origin(self.waiting[0][0]) != self._origin(taken[0][0]):
                break
            taken.append(self.waiting.popleft())
            self.free -= taken[-1][1].leaves
        new = list(dict.fromkeys(b for b, _ in taken if b not in self.prefilled))
        if new:
            forwarded = prefill(self.decoder, [self.prompts[b] for b in new], self.beginning)
            self.prefilled |= {b: (forwarded, row) for row, b in enumerate(new)}
        for _, group in groupby(taken, key=lambda item: self._origin(item[0])):
            thoughts = list(group)
            forwarded = self.prefilled[thoughts[0][0]][0]
            self._join(forwarded, [self.prefilled[b][1] for b, _ in thoughts], [thought for _, thought in thoughts])
        still = {b for b, _ in self.waiting}
        self.prefilled = {b: place for b, place in self.prefilled.items() if b in still}

    def _origin(self, prompt: int) -> int | None:
        """Tells apart prompts that were forwarded at different times, or not yet."""
        return id(self.prefilled[prompt][0]) if prompt in self.prefilled else None

    def _join(self, forwarded: Prefilled, sources: list[int], thoughts: list[Draft]) -> None:
        """Add rows that follow prompts."""
        source_N = self._tensor(sources)
        first = len(self.slot_R)
        mask_NC = None if forwarded.mask_BC is None else forwarded.mask_BC[source_N]
        if self.cache is None:
            self.cache = forked(forwarded.cache, source_N, min(self.max_rows, len(self.drafts)))
            self.columns, self.mask_RC = forwarded.columns, mask_NC
        else:
            self._drop_dead_columns()
            admit(self.cache, forwarded.cache, source_N)
            if mask_NC is None:
                mask_NC = torch.ones(len(sources), forwarded.columns, dtype=torch.bool, device=source_N.device)
            if self.mask_RC is None:
                self.mask_RC = torch.ones(first, self.columns, dtype=torch.bool, device=source_N.device)
            self.columns = max(self.columns, forwarded.columns)
            widened = (pad(mask, (self.columns - mask.shape[1], 0)) for mask in (self.mask_RC, mask_NC))
            self.mask_RC = torch.cat(list(widened))
        for name in ROW_STATE:
            setattr(self, name, torch.cat([getattr(self, name), torch.zeros_like(source_N)]))
        self.position_R[first:] = forwarded.next_B[source_N]
        self.logits_RV = torch.cat([self.logits_RV.to(forwarded.logits_BV), forwarded.logits_BV[source_N]])
        self._seat(list(range(first, first + len(thoughts))), thoughts)

    def _drop_dead_columns(self) -> None:
        """Cut what is left of every row's first token, if it is worth a copy of the cache."""
        if self.mask_RC is not None and len(self.mask_RC):
            dead = int(self.mask_RC.any(0).to(torch.int8).argmax())
            if dead >= ROOM:
                drop_columns(self.cache, dead)
                self.mask_RC, self.columns = self.mask_RC[:, dead:], self.columns - dead

    def _draw(self) -> None:
        """One token for every row, recorded."""
        token_R, logprob_R = draw(self.logits_RV, uniform(self.key_R, self.length_R), self.sampling)
        if len(self.forced):
            is_forced_R = self.forced_R != FREE
            token_R = torch.where(is_forced_R, self.forced[self.forced_R], token_R)
            logprob_R = logprob_R.masked_fill(is_forced_R, 0.0)
            self.forced_R += is_forced_R
        self.ids_NL[self.slot_R, self.length_R] = token_R
        self.logprobs_NL[self.slot_R, self.length_R] = logprob_R
        self.length_R += 1
        self.token_R = token_R

    def _finished(self) -> list[tuple[int, Draft]]:
        """Rows whose node has just ended. Only rows that may have ended are looked at one by one."""
        ended_R = self.endings.watched_V[self.token_R] | (self.length_R == self.limit_R)
        if len(self.forced):
            ended_R |= self.forced_R == len(self.forced)
        finished = []
        for row in ended_R.nonzero()[:, 0].tolist():
            draft, length, forced = self.drafts[self.slot_R[row]], int(self.length_R[row]), int(self.forced_R[row])
            finish = self._finish(draft, length, forced)
            if finish in ("stop", "length") and draft.kind == "thought" and len(self.forced):
                self.forced_R[row] = 0
            elif finish is not None:
                draft.finish, draft.length, draft.forced = finish, length, max(forced, 0)
                finished.append((row, draft))
        return finished

    def _finish(self, draft: Draft, length: int, forced: int) -> Finish | None:
        if forced != FREE:
            return "forced" if forced == len(self.forced) else None
        return self.endings.finish(draft, self.ids_NL[draft.slot, :length].tolist())

    def _forward(self) -> None:
        """Feed each row its last token."""
        if self.mask_RC is not None:
            self.mask_RC = torch.cat([self.mask_RC, torch.ones_like(self.mask_RC[:, :1])], dim=1)
        if self.gaps and self.columns % ROOM == 0:
            self._drop_dead_columns()
        self.columns += 1
        self.logits_RV = self.decoder(self.token_R[:, None], self.position_R[:, None], self.mask_RC, self.cache)
        self.position_R += 1

    def _fork(self) -> None:
        """Closed thoughts become their answers: the first in the thought's own row, the others in new ones."""
        sources, rows, answers = list(range(len(self.slot_R))), [], []
        for row, slot in enumerate(self.slot_R.tolist()):
            if self.drafts[slot].closed:
                others = self.drafts[slot].answers[1:]
                rows += [row, *range(len(sources), len(sources) + len(others))]
                answers += self.drafts[slot].answers
                sources += [row] * len(others)
        self._take(sources)
        self.logits_RV = self.logits_RV[sources]
        self._seat(rows, answers)

    def _seat(self, rows: list[int], drafts: list[Draft]) -> None:
        """Begin to sample drafts in rows."""
        self.slot_R[rows] = self._tensor([draft.slot for draft in drafts])
        self.limit_R[rows] = self._tensor([draft.limit for draft in drafts])
        self.key_R[rows] = self._tensor([draft.key for draft in drafts])
        self.length_R[rows], self.forced_R[rows] = 0, FREE

    def _take(self, sources: list[int]) -> None:
        """Row r becomes what row `sources[r]` was, its logits apart."""
        index_R = self._tensor(sources)
        reorder(self.cache, index_R)
        for name in ROW_STATE:
            setattr(self, name, getattr(self, name)[index_R])
        if self.mask_RC is not None:
            self.mask_RC = self.mask_RC[index_R]

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.decoder.device)

    def _cut(self) -> None:
        """Give each draft that was sampled its tokens."""
        ids_NL, logprobs_NL = self.ids_NL.cpu().numpy(), self.logprobs_NL.cpu().numpy()
        for draft in self.drafts:
            if draft.finish is not None:
                draft.ids_T = ids_NL[draft.slot, : draft.length].copy()
                draft.logprobs_T = logprobs_NL[draft.slot, : draft.length].copy()


def _closed_up(count: int, leaving: Collection[int]) -> list[int]:
    """Sources of the rows that stay: the last ones move into the gaps, the others keep their places."""
    staying = count - len(leaving)
    movers = iter([row for row in range(staying, count) if row not in leaving])
    return [next(movers) if row in leaving else row for row in range(staying)]
