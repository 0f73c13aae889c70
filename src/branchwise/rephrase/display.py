"""What a user sees: progress, the table of rejections, samples."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from branchwise.rephrase.exchange import Exchange
from branchwise.rephrase.run import Result
from branchwise.rephrase.work import Tally

EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class Display:
    """One live line in a terminal, a plain line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.console = Console(highlight=False)
        self.total, self.said = total, time.monotonic()
        columns = (TextColumn("rephrasing"), BarColumn(bar_width=24), MofNCompleteColumn())
        self.live = (
            Progress(*columns, TextColumn("{task.fields[line]}"), TimeRemainingColumn(), console=self.console)
            if self.console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
            self.task = self.live.add_task("rephrasing", total=self.total, line="")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def update(self, tally: Tally, exchange: Exchange) -> None:
        cost = "" if not exchange.cost else f" · ${exchange.cost:,.2f}"
        line = (
            f"{tally.accepted} accepted · {tally.rejected.total()} rejected · "
            f"{exchange.tokens.total():,} tokens{cost} · {exchange.sent} requests"
        )
        if self.live:
            self.live.update(self.task, completed=tally.done, line=line)
        elif time.monotonic() - self.said > EVERY or tally.done == self.total:
            self.said = time.monotonic()
            self.console.print(f"{tally.done}/{self.total} questions · {line}", markup=False, soft_wrap=True)
            sys.stdout.flush()


def report(result: Result, n: int) -> Iterator[str]:
    """Lines at the end."""
    tally = result.tally
    cost = "" if not result.cost else f", ${result.cost:,.2f}"
    yield (
        f"{tally.accepted} rephrasings of {tally.done} questions; {result.sent} requests sent, {result.found} replies "
        f"found in the store; {result.tokens:,} tokens{cost} in all"
    )
    if tally.short:
        yield f"{tally.short} questions have fewer than {n} rephrasings"
    for number, reason in result.without[:20]:
        yield f"row {number}: {reason}"
    yield from rejections(tally)
    for reason, count in tally.given_up.most_common(5):
        yield f"warning: {count} replies could not be had; run again to ask anew ({reason})"


def rejections(tally: Tally) -> Iterator[str]:
    """The table of reasons."""
    total = tally.rejected.total()
    yield f"rejected: {total}" + (f" of {total + tally.accepted}" if total else "")
    for name, count in tally.rejected.most_common():
        yield f"  {name:<12} {count:>6} {count / total:>6.0%}"


def samples(result: Result, count: int) -> Iterator[str]:
    """The first questions that have rephrasings, with these."""
    for outcome in [o for o in result.outcomes if o.accepted][:count]:
        yield f"\n[{outcome.item.id}] {outcome.item.question}"
        for record in outcome.accepted:
            yield f"  - ({record['kind']}) {record['text']}"
