"""Throughput of the graders.

    python benchmarks/rewards.py [--json] [--seconds 3] [--parts math]

`math` grades answers in two processes: pairs of texts, of exact numbers, and of formulas that only their values tell,
every pair a new one, so that no cache answers. Then batches of 64 with a hostile answer in each against the same
batches without: `hostile_excess_s` is what a batch takes longer at worst, and `limit_s` the time that one answer is
allowed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from rewards_code import programs
from rich.console import Console
from rich.table import Table

PROCESSES = 2
BATCH = 64
HOSTILE = (
    r"7^{7^{7^{7^{7}}}}",
    r"((9^{50})^{50})^{50}",
    r"\sum_{k=1}^{99999999} \frac{1}{k}",
    r"\int_0^1 \sin(x^x)^{x} dx",
    "(" * 9999,
    "9" * 5000,
    r"(x+y+z)^{500}",
    r"\binom{1000000}{500000}",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print results as JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement (default 3)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which graders (default all)")
    args = parser.parse_args()
    results = {part: PARTS[part](args.seconds) for part in args.parts}
    if args.json:
        print(json.dumps(results, indent=2))
        return
    table = Table("part", "what", "value")
    for part, values in results.items():
        for name, value in values.items():
            table.add_row(part, name, str(value))
    Console().print(table)


# Mathematics


def mathematics(seconds: float) -> dict[str, Any]:
    """Answers a second over two processes, and what hostile answers cost."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        rates = {
            f"{kind}_per_second": round(
                sum(pool.map(_rate, [kind] * PROCESSES, range(PROCESSES), [seconds] * PROCESSES))
            )
            for kind in ("text", "number", "symbolic")
        }
    return rates | _hostile()


def _rate(kind: str, seed: int, seconds: float) -> float:
    from branchwise.rewards.math import math

    draw = PAIRS[kind](random.Random(seed))
    _check(math, [next(draw) for _ in range(BATCH)])
    graded, spent = 0, 0.0
    while spent < seconds:
        batch = [next(draw) for _ in range(BATCH)]
        start = time.perf_counter()
        _check(math, batch)
        spent += time.perf_counter() - start
        graded += BATCH
    return graded / spent


def _check(math: Callable[..., list[float | None]], batch: list[tuple[str, str, float]]) -> None:
    golds, answers, rewards = zip(*batch)
    paid = math([f"Adding both gives the result.\n\nSo it is \\boxed{{{answer}}}." for answer in answers], golds)
    assert paid == list(rewards), [pair for pair, reward in zip(batch, paid) if reward != pair[2]]


def _texts(draw: random.Random) -> Iterator[tuple[str, str, float]]:
    """Words, right and wrong."""
    while True:
        name = "".join(draw.choices("bcdfgklmnprst", k=4)) + draw.choice("aeiou") + "".join(draw.choices("lmnrs", k=2))
        right = draw.random() < 0.5
        yield f"\\text{{{name}}}", name.capitalize() if right else name[::-1] + "e", float(right)


def _numbers(draw: random.Random) -> Iterator[tuple[str, str, float]]:
    """Integers with separators, decimals and fractions, mixed numbers, percent, units; right and wrong."""
    while True:
        n, d = draw.randint(1, 10**6), draw.choice([2, 4, 5, 8])
        right = draw.random() < 0.5
        m = n if right else n + 1
        yield draw.choice(
            [
                (f"{n}", f"{m:,}", float(right)),
                (f"\\frac{{{n}}}{{{d}}}", f"{m / d:.10f}".rstrip("0").rstrip("."), float(right)),
                (f"{n}\\text{{ cm}}", f"{m} centimeters", float(right)),
                (f"{n}\\%", f"{m / 100}", float(right)),
                (f"{n}.5", f"{m}\\frac12", float(right)),
            ]
        )


def _symbolic(draw: random.Random) -> Iterator[tuple[str, str, float]]:
    """Formulas whose texts differ."""
    while True:
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        right = draw.random() < 0.5
        d = b if right else b + 1
        yield draw.choice(
            [
                (f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{d})", float(right)),
                (f"{c}\\sqrt{{{a * b * b}}}", f"{c * d}\\sqrt{{{a}}}", float(right)),
                (f"\\frac{{{a}}}{{\\sqrt{{{b}}}}}+\\pi", f"\\pi+\\frac{{{a}\\sqrt{{{b}}}}}{{{d}}}", float(right)),
                (f"\\sin^2({a}t)+{b}", f"{d + 1}-\\cos^2({a}t)", float(right)),
                (f"{a}x-{b}y+{c}=0", f"{b}y = {c}+{a if right else a + 1}x", float(right)),
            ]
        )


PAIRS = {"text": _texts, "number": _numbers, "symbolic": _symbolic}


def _hostile() -> dict[str, Any]:
    from branchwise.rewards.math import math
    from branchwise.rewards.mathematics import symbolic

    symbolic.equal(r"\int_0^1 2x dx", "1")  # starts the worker
    tame, worst = [], []
    for number, hostile in enumerate(HOSTILE):
        draw = _numbers(random.Random(number))
        batch = [next(draw) for _ in range(BATCH)]
        start = time.perf_counter()
        _check(math, batch)
        tame.append(time.perf_counter() - start)
        batch = [next(draw) for _ in range(BATCH - 1)]
        batch.insert(number * 7, (r"\sqrt{7}", hostile, 0.0))
        start = time.perf_counter()
        _check(math, batch)
        worst.append(time.perf_counter() - start)
    return {
        "batch_s": round(median(tame), 4),
        "hostile_batch_s": round(median(worst), 4),
        "hostile_excess_s": round(max(worst) - median(tame), 4),
        "limit_s": symbolic.LIMIT,
    }


PARTS: dict[str, Callable[[float], dict[str, Any]]] = {"math": mathematics, "code": programs}
"""A function for each grader, from the seconds of a measurement to its results."""


if __name__ == "__main__":
    main()
