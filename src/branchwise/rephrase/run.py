"""From a table to its outcomes: writers made, the store opened, the work done in an event loop of its own."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import Rows
from branchwise.errors import ConfigError
from branchwise.rephrase.cost import Prices
from branchwise.rephrase.exchange import Budget, Exchange
from branchwise.rephrase.questions import Item, items
from branchwise.rephrase.store import Store
from branchwise.rephrase.work import Outcome, Tally, Work
from branchwise.rephrase.writer import Stopped, Writer, split_name


@dataclass(frozen=True, slots=True)
class Result:
    """What the work came to."""

    outcomes: list[Outcome]
    without: list[tuple[int, str]]
    """Rows without a question: number from 1, reason."""
    tally: Tally
    sent: int
    """Requests of this run."""
    found: int
    """Replies that were in the store."""
    tokens: int
    """Of all replies in the store, prompts included."""
    cost: float | None
    """Of all replies in the store; None where a price is not known."""
    stopped: str | None
    """Why the work ended early; what came is in the store."""


Progress = Callable[[Tally, Exchange], None]


def rephrase(
    table: Rows,
    n: int,
    config: RephraseConfig,
    store: Path,
    policy: Writer | None = None,
    progress: Progress = lambda tally, exchange: None,
) -> Result:
    """Write up to `n` rephrasings of each question; see Work.

    Args:
        table: the rows; rephrasings that they bring are checked, kept and counted.
        n: how many each question is to have.
        config: writer, kinds, checks, settings, budget.
        store: file of the replies; it is made where it is missing.
        policy: the writer that `policy` names.
        progress: called whenever a question is done.

    Raises:
        ConfigError: a writer, prompt, check, price or the store cannot be had.
    """
    found, without = items(table)
    names = dict.fromkeys(name for name in (config.writer, config.judge, config.solver) if name is not None)
    prices = Prices(config.price_in, config.price_out)
    if config.budget_cost is not None:
        for name in names:
            prices.need(name)
    if "rules" in (config.judge, config.solver):
        raise ConfigError("rephrase.judge, rephrase.solver: rules can neither judge nor solve; name a model")
    writers = [make_writer(name, config, policy) for name in names]
    return _in_a_loop(lambda: _work(found, without, n, config, Store(store), writers, prices, progress))


async def _work(
    found: list[Item],
    without: list[tuple[int, str]],
    n: int,
    config: RephraseConfig,
    store: Store,
    writers: Sequence[Writer],
    prices: Prices,
    progress: Progress,
) -> Result:
    budget = Budget(config.budget_requests, config.budget_tokens, config.budget_cost)
    exchange = Exchange(writers, store, prices, budget)
    _stop_on_interrupt(exchange)
    try:
        work = Work(config, n, exchange, config.writer, lambda tally: progress(tally, exchange))
        outcomes = await work.run(found)
    finally:
        await exchange.close()
    return Result(
        outcomes,
        without,
        work.tally,
        sent=exchange.sent,
        found=exchange.found,
        tokens=exchange.tokens.total(),
        cost=exchange.cost,
        stopped=str(exchange.stopped) if exchange.stopped else None,
    )


def make_writer(name: str, config: RephraseConfig, policy: Writer | None) -> Writer:
    """
    Raises:
        ConfigError: no such writer, or it cannot be had here.
    """
    way, _ = split_name(name)
    if way == "rules":
        from branchwise.rephrase.rules import RuleWriter

        return RuleWriter(list(config.kinds))
    if way == "openai":
        from branchwise.rephrase.endpoint import Endpoint

        return Endpoint(name, config)
    if way == "local":
        from branchwise.rephrase.local import load_local

        return load_local(name, config.request.get("chat_template_kwargs", {}))
    if policy is None:
        raise ConfigError("rephrase.writer: 'policy' is the model of a training run; here name local:MODEL")
    return policy


def _in_a_loop(work: Callable):
    """Run a coroutine to its end, in a thread of its own where this one has a loop already (notebooks)."""

    async def main():
        return await work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()


def _stop_on_interrupt(exchange: Exchange) -> None:
    """The first Ctrl-C lets paid-for replies arrive; the second ends at once."""
    loop = asyncio.get_running_loop()
    tasks = set()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        tasks.add(loop.create_task(exchange.stop(Stopped("interrupted"))))

    if threading.current_thread() is threading.main_thread():
        try:
            loop.add_signal_handler(signal.SIGINT, stop)
        except NotImplementedError:  # Windows
            return
