"""What the work would send and cost, without sending anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import Rows
from branchwise.rephrase.cost import LENGTHENING, MESSAGE_TOKENS, Prices, count_tokens
from branchwise.rephrase.questions import items
from branchwise.rephrase.templates import load_prompt
from branchwise.rephrase.work import check_names
from branchwise.rephrase.writer import split_name

VERDICT, SOLUTION = 150, 400
"""Tokens of a judge's and of a solver's reply, about."""


def estimate(table: Rows, n: int, config: RephraseConfig) -> Iterator[str]:
    """Lines on requests, tokens and money: where every first reply passes, and at most.

    Raises:
        ConfigError: a writer, prompt or check that cannot be; no question.
    """
    check_names(config.skip_checks)
    for name in filter(None, (config.writer, config.judge, config.solver)):
        split_name(name)
    found, without = items(table)
    missing = [max(0, n - len(item.given)) for item in found]
    yield f"{table.name}: {len(found)} questions, {sum(missing)} rephrasings to write ({n} of each), {config.writer}"
    if without:
        yield f"  {len(without)} rows have no question to rephrase and stay as they are"
    if config.writer == "rules" and not (config.judge or config.solver):
        yield "rules need no model: nothing is sent, nothing is paid"
        return
    kinds = [load_prompt(kind, config.prompts).text for kind in config.kinds]
    frame = sum(count_tokens(text.replace("{question}", "")) for text in kinds) / len(kinds) + MESSAGE_TOKENS
    first: Counter[str] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for item, count in zip(found, missing):
        length = count_tokens(item.question)
        _add(first, tokens, config.writer, count, frame + length, LENGTHENING * length)
        if config.judge:
            _add(first, tokens, config.judge, count, 60 + 2.15 * length, VERDICT)
        if config.solver:
            _add(first, tokens, config.solver, (count + 1) * config.solver_samples, 20 + length, SOLUTION)
    prices = Prices(config.price_in, config.price_out)
    yield from _lines(first, tokens, prices)
    yield f"at most {config.attempts} times as much, where replies are rejected and asked for anew (rephrase.attempts)"


def _add(
    requests: Counter[str], tokens: Counter[tuple[str, str]], name: str, count: int, prompt: float, reply: float
) -> None:
    if split_name(name)[0] == "rules":
        return
    requests[name] += count
    tokens[name, "in"] += round(count * prompt)
    tokens[name, "out"] += round(count * reply)


def _lines(requests: Counter[str], tokens: Counter[tuple[str, str]], prices: Prices) -> Iterator[str]:
    for name, count in requests.items():
        ours = {key: value for key, value in tokens.items() if key[0] == name}
        cost = prices.cost(ours)
        price = prices.of(name)
        told = (
            "no price is known: give --price-in and --price-out, per million tokens"
            if cost is None or price is None
            else f"${cost:,.2f} at ${price[0]:g} and ${price[1]:g} per million"
        )
        yield (
            f"{name}: {count:,} requests, about {tokens[name, 'in']:,} prompt tokens and {tokens[name, 'out']:,} reply "
            f"tokens: {told}"
        )
