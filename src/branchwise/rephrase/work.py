"""The work itself: orders for every question, checks of every reply, until each has its rephrasings or none is left."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from branchwise.config_rephrase import RephraseConfig
from branchwise.errors import ConfigError
from branchwise.rephrase.checks import CHECKS, Candidate, rejection
from branchwise.rephrase.exchange import Exchange
from branchwise.rephrase.questions import Item
from branchwise.rephrase.referees import Referees
from branchwise.rephrase.reply import read_reply
from branchwise.rephrase.templates import PromptFile, load_prompt
from branchwise.rephrase.writer import GaveUp, Order, Reply, Settings, Stopped

SLOTS = 1000
"""More than any question has rephrasings: sample = attempt * SLOTS + slot, so a larger N asks for nothing anew."""


@dataclass(slots=True)
class Outcome:
    """What one question came to."""

    item: Item
    accepted: list[dict[str, Any]] = field(default_factory=list)
    """Records of the rephrasings, `text` among their fields."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    """Records with the `reason`."""
    given_up: list[str] = field(default_factory=list)
    """Why replies could not be had."""
    done: bool = False

    @property
    def texts(self) -> list[str]:
        return [record["text"] for record in self.accepted]


@dataclass(slots=True)
class Tally:
    """Counts over all questions that are done."""

    done: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """By (check) name."""
    given_up: Counter[str] = field(default_factory=Counter)
    short: int = 0
    """Questions with fewer rephrasings than asked."""

    def add(self, outcome: Outcome, wanted: int) -> None:
        self.done += 1
        self.accepted += len(outcome.accepted)
        self.rejected.update(record["reason"].partition(":")[0] for record in outcome.rejected)
        self.given_up.update(outcome.given_up)
        self.short += len(outcome.accepted) < wanted


class Work:
    """Rephrases questions.

    Every choice depends on the question and the settings alone, not on when replies come, so that a run that was
    killed and begun again ends as one that was not.

    Args:
        config: kinds, attempts, checks, settings.
        n: rephrasings wanted of each question.
        exchange: answers orders; it holds the writer (and judge and solver).
        writer: the writer's name.
        progress: called with the tally when a question is done.

    Raises:
        ConfigError: a check or a prompt that is not there.
    """

    def __init__(
        self,
        config: RephraseConfig,
        n: int,
        exchange: Exchange,
        writer: str,
        progress: Callable[[Tally], None] = lambda tally: None,
    ) -> None:
        self.config, self.n, self.exchange, self.writer, self.progress = config, n, exchange, writer, progress
        check_names(config.skip_checks)
        self.prompts = {kind: load_prompt(kind, config.prompts) for kind in config.kinds}
        self.settings = settings_of(config)
        self.referees = Referees(config, exchange)
        self.tally = Tally()

    async def run(self, items: Sequence[Item]) -> list[Outcome]:
        """Outcomes in the items' order; those that a stop left over are not `done`, and `exchange.stopped` says why."""
        outcomes = [Outcome(item) for item in items]
        turns = iter(outcomes)
        await asyncio.gather(*(self._take(turns) for _ in range(self.config.concurrency)))
        return outcomes

    async def _take(self, turns: Iterator[Outcome]) -> None:
        for outcome in turns:
            try:
                await self._rephrase(outcome)
            except Stopped as stopped:
                await self.exchange.stop(stopped)
                return
            outcome.done = True
            self.tally.add(outcome, self.n)
            self.progress(self.tally)
            await asyncio.sleep(0)  # where all is in the store, nothing else yields

    async def _rephrase(self, outcome: Outcome) -> None:
        item = outcome.item
        for text in item.given:
            await self._judge(outcome, text, {"model": None, "kind": "given"})
        slots = list(range(self.n - len(outcome.accepted)))
        for attempt in range(self.config.attempts):
            orders = [self._order(item, slot, attempt) for slot in slots]
            replies = await asyncio.gather(*(self._reply(order) for order in orders))
            open_slots = []
            for slot, order, reply in zip(slots, orders, replies):
                if isinstance(reply, GaveUp):
                    outcome.given_up.append(str(reply))
                elif reply.finish != "exhausted" and not await self._read(outcome, order, reply):
                    open_slots.append(slot)
            if not (slots := open_slots):
                return

    def _order(self, item: Item, slot: int, attempt: int) -> Order:
        kinds = self.config.kinds
        first = int(hashlib.sha256(item.question.encode()).hexdigest(), 16)  # kinds are even over questions, too
        kind = kinds[(first + slot) % len(kinds)]
        prompt: PromptFile = self.prompts[kind]
        sample = attempt * self.n + slot if self.writer == "rules" else attempt * SLOTS + slot
        text = prompt.fill(question=item.question)
        return Order(self.writer, text, prompt.version, sample, self.settings, item.question, kind)

    async def _reply(self, order: Order) -> Reply | GaveUp:
        try:
            return await self.exchange.ask(order)
        except GaveUp as reason:
            return reason

    async def _read(self, outcome: Outcome, order: Order, reply: Reply) -> bool:
        """Accept or reject a reply."""
        text, reason = read_reply(reply.text, reply.finish, order.question)
        record = {
            "model": order.model,
            "served_by": reply.served_by,
            "kind": order.kind if order.model != "rules" else reply.served_by.partition("/")[2],
            "prompt": order.version if order.model != "rules" else None,
            "sample": order.sample,
            "seed": order.seed,
            "settings": asdict(order.settings) if order.model != "rules" else {"seed": order.settings.seed},
            "prompt_tokens": reply.prompt_tokens,
            "reply_tokens": reply.reply_tokens,
        }
        return await self._judge(outcome, text, record, reason)

    async def _judge(self, outcome: Outcome, text: str, record: dict[str, Any], reason: str | None = None) -> bool:
        item = outcome.item
        candidate = Candidate(item.question, text, item.answer, outcome.texts, renames=record["kind"] == "variables")
        reason = reason or rejection(candidate, self.config.skip_checks)
        try:
            reason = reason or await self.referees.rejection(candidate)
        except GaveUp as error:
            reason = f"referee: {error}"
        entry = {"row": item.row, "id": item.id, "text": text, **record}
        if reason:
            outcome.rejected.append({**entry, "reason": reason})
        else:
            outcome.accepted.append(entry)
        return reason is None


def settings_of(config: RephraseConfig) -> Settings:
    return Settings(config.temperature, config.top_p, config.max_tokens, config.seed, config.request)


def check_names(names: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: a name of no check.
    """
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"rephrase.skip_checks: {name!r} is no check; they are {', '.join(CHECKS)}")
