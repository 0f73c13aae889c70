"""Decoding of rows that fork: thoughts from prompts, answers from thoughts, all in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from branchwise.rollout.cache import forked, reorder
from branchwise.rollout.draw import draw
from branchwise.rollout.engine import Sampling
from branchwise.rollout.keyed_random import uniform
from branchwise.rollout.marker import Marker
from branchwise.rollout.prefill import Decoder, Prefilled
from branchwise.tree import Finish, Kind, Node

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


class Growth:
    """The thoughts of some prompts and their answers, sampled together.

    Args:
        thoughts: each with the row of `prefilled` that it follows.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefilled: Prefilled,
        thoughts: Sequence[tuple[int, Draft]],
        sampling: Sampling,
        endings: Endings,
    ) -> None:
        self.decoder, self.sampling, self.endings = decoder, sampling, endings
        self.drafts = [node for _, thought in thoughts for node in (thought, *thought.answers)]
        for slot, draft in enumerate(self.drafts):
            draft.slot = slot
        device = decoder.device
        forced = endings.marker.ids if endings.marker and sampling.force_close else []
        self.forced = self._tensor(forced)
        longest = max(draft.limit for draft in self.drafts) + len(forced)
        self.ids_NL = torch.zeros(len(self.drafts), longest, dtype=torch.int64, device=device)
        self.logprobs_NL = torch.zeros(len(self.drafts), longest, dtype=torch.float32, device=device)
        source_R = self._tensor([row for row, _ in thoughts])
        self.cache = forked(prefilled.cache, source_R, rows=sum(thought.leaves for _, thought in thoughts))
        self.mask_RC = None if prefilled.mask_BC is None else prefilled.mask_BC[source_R]
        self.position_R = prefilled.length_B[source_R]
        self.logits_RV = prefilled.logits_BV[source_R]
        empty = torch.zeros(len(thoughts), dtype=torch.int64, device=device)
        self.slot_R, self.length_R, self.limit_R = empty.clone(), empty.clone(), empty.clone()
        self.key_R, self.forced_R, self.token_R = empty.clone(), empty.clone(), empty
        self._seat(list(range(len(thoughts))), [thought for _, thought in thoughts])

    @torch.no_grad()
    def run(self) -> None:
        """Sample until every row has finished; the drafts then hold their tokens."""
        while True:
            self._draw()
            finished = self._finished()
            leaves = {row for row, draft in finished if not draft.closed}
            if leaves:
                self._take(_closed_up(len(self.slot_R), leaves))
            if not len(self.slot_R):
                break
            self._forward()
            if len(leaves) < len(finished):
                self._fork()
        self._cut()

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
        ids_T = self.ids_NL[draft.slot, :length].tolist()
        marker = self.endings.marker
        if draft.kind == "thought" and marker is not None and marker.may_end_V[ids_T[-1]] and marker.ends(ids_T):
            return "marker"
        if ids_T[-1] in self.endings.stop:
            return "stop"
        return "length" if length == draft.limit else None

    def _forward(self) -> None:
        """Feed each row its last token."""
        if self.mask_RC is not None:
            self.mask_RC = torch.cat([self.mask_RC, torch.ones_like(self.mask_RC[:, :1])], dim=1)
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
        for name in ("slot_R", "length_R", "limit_R", "position_R", "key_R", "forced_R", "token_R"):
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


def _closed_up(count: int, leaving: set[int]) -> list[int]:
    """Sources of the rows that stay: the last ones move into the gaps, the others keep their places."""
    staying = count - len(leaving)
    movers = iter([row for row in range(staying, count) if row not in leaving])
    return [next(movers) if row in leaving else row for row in range(staying)]
