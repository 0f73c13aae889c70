"""Orders to writers: each answered once, from the store where it can be, within the budget, until the work stops."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from branchwise.rephrase.cost import Prices
from branchwise.rephrase.store import Store
from branchwise.rephrase.writer import Order, Reply, Stopped, Writer


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the work stops; None: without limit. Replies that are in the store already count."""

    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None


class Exchange:
    """Answers orders.

    Args:
        writers: every writer that orders name.
        store: where replies are kept.
        prices: what tokens cost.
        budget: when to stop. What is under way when it runs out still counts and is kept, so a budget in tokens or
            money may be passed by so much; one in requests never is.
    """

    def __init__(self, writers: Sequence[Writer], store: Store, prices: Prices, budget: Budget = Budget()) -> None:
        self.writers = {writer.name: writer for writer in writers}
        self.store, self.prices, self.budget = store, prices, budget
        self.sent = self.found = 0
        """Requests sent by this process, and replies found in the store."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        """All that the store holds, by (model, in or out)."""
        self.earlier = 0
        """Replies that earlier runs left."""
        for model, replies, prompt, reply in store.totals():
            self.earlier += replies
            self.tokens[model, "in"] += prompt
            self.tokens[model, "out"] += reply
        self.stopped: Stopped | None = None
        self._under_way: dict[str, asyncio.Task[Reply]] = {}

    @property
    def cost(self) -> float | None:
        """What all replies in the store cost; None where a price is not known."""
        return self.prices.cost(self.tokens)

    async def ask(self, order: Order) -> Reply:
        """The reply to an order.

        Raises:
            Stopped: the work has ended.
            GaveUp: this reply cannot be had.
        """
        writer = self.writers[order.model]
        if not writer.stored:
            return await writer.ask(order, lambda: None)
        if reply := self.store.get(order):
            self.found += 1
            return reply
        if order.key not in self._under_way:
            self._under_way[order.key] = asyncio.create_task(self._fetch(writer, order))
        return await asyncio.shield(self._under_way[order.key])

    async def _fetch(self, writer: Writer, order: Order) -> Reply:
        try:
            reply = await writer.ask(order, self._admit)
            self.store.put(order, reply)
            self.tokens[order.model, "in"] += reply.prompt_tokens
            self.tokens[order.model, "out"] += reply.reply_tokens
            return reply
        except sqlite3.Error as error:  # a full disk, above all
            stopped = Stopped(f"{self.store.path} cannot be written: {error}")
            await self.stop(stopped)
            raise stopped from error
        except Stopped as stopped:
            await self.stop(stopped)
            raise
        finally:
            del self._under_way[order.key]

    def _admit(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            Stopped: the work has ended, or the budget is spent.
        """
        if self.stopped:
            raise self.stopped
        if reason := self._spent():
            raise Stopped(f"{reason}; raise it and run again to go on")
        self.sent += 1

    def _spent(self) -> str | None:
        b = self.budget
        if b.requests is not None and self.sent + self.earlier >= b.requests:
            return f"the budget of {b.requests} requests is spent"
        if b.tokens is not None and self.tokens.total() >= b.tokens:
            return f"the budget of {b.tokens} tokens is spent"
        if b.cost is not None and (self.cost or 0) >= b.cost:
            return f"the budget of {b.cost} (money) is spent"
        return None

    async def stop(self, reason: Stopped) -> None:
        """Send nothing more; what is under way may finish, and is stored."""
        if self.stopped is None:
            self.stopped = reason
            await asyncio.gather(*(writer.stop() for writer in self.writers.values()))

    async def close(self) -> None:
        """Wait for what is under way, then let go of everything."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await asyncio.gather(*(writer.close() for writer in self.writers.values()))
        self.store.close()
