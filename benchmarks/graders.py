"""Branchwise's math grader and the public ones on the same pairs: the table of docs/rewards.md.

    pip install --no-deps --target graders verl pylatexenc antlr4-python3-runtime==4.11.0
    PYTHONPATH=src:graders python benchmarks/graders.py [--json] [--cases ../shared/cases/cases.jsonl]

The pairs are those of tests/math_pairs.py whose reward is not a matter of usage; `--cases` takes others, a JSON object
a line with `input.pairs` of `gold` and `output` and with `expected.rewards`. Every grader is given the whole output and
the reference as its own project calls it, and 10 seconds for a pair, in a process of its own on its main thread. What
fails or overruns pays 0. A grader whose package is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import multiprocessing
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 10
Pair = tuple[str, str, str, float]
"""Kind, reference, output, reward."""


def branchwise() -> Callable[[str, str], float]:
    from branchwise.rewards.math import math

    return lambda gold, output: math([output], [gold])[0]


def math_verify() -> Callable[[str, str], float]:
    from math_verify import parse, verify

    return lambda gold, output: float(verify(parse(f"${gold}$"), parse(output)))


def trl_accuracy() -> Callable[[str, str], float]:
    from trl.rewards import accuracy_reward

    return lambda gold, output: accuracy_reward([[{"content": output}]], [f"${gold}$"])[0]


def verl_hendrycks() -> Callable[[str, str], float]:
    return _verl("math_reward").compute_score_swapped


def verl_dapo() -> Callable[[str, str], float]:
    module = _verl("math_dapo")
    return lambda gold, output: float(module.compute_score(output, gold, strict_box_verify=True)["acc"])


def verl_prime() -> Callable[[str, str], float]:
    module = _verl("prime_math")
    return lambda gold, output: float(module.compute_score(output, gold)[0])


GRADERS = {
    "Branchwise": (branchwise, "branchwise"),
    "Math-Verify": (math_verify, "math-verify"),
    "TRL accuracy_reward": (trl_accuracy, "trl"),
    "verl math_reward (Hendrycks)": (verl_hendrycks, "verl"),
    "verl math_dapo": (verl_dapo, "verl"),
    "verl prime_math": (verl_prime, "verl"),
}
"""By the names of the table: how each is made, and its package."""


def _verl(name: str) -> Any:
    """A scorer of verl without the imports of its whole package."""
    root = next(path for path in map(Path, sys.path) if (path / "verl").is_dir()) / "verl"
    for package in ("", "utils", "utils/reward_score"):
        module = types.ModuleType(".".join(filter(None, ["verl", *package.split("/")])))
        module.__path__ = [str(root / package)]
        sys.modules.setdefault(module.__name__, module)
    found = importlib.import_module(f"verl.utils.reward_score.{name}")
    if name == "math_reward":
        found.compute_score_swapped = lambda gold, output: float(found.compute_score(output, gold))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print results as JSON instead of a table")
    parser.add_argument("--cases", type=Path, help="other pairs than those of the tests")
    args = parser.parse_args()
    pairs = list(cases(args.cases) if args.cases else tests())
    results = {name: errors(name, pairs) for name in GRADERS if installed(name)}
    print(json.dumps(results, indent=2) if args.json else table(results, pairs))


def tests() -> Iterator[Pair]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from math_pairs import OPEN, PAIRS, TEXTS

    for kind, pairs in PAIRS.items():
        for gold, answer, reward in pairs:
            if (gold, answer) not in OPEN:
                yield kind, gold, f"\\boxed{{{answer}}}", reward
    yield from (("extraction", *text) for text in TEXTS)


def cases(path: Path) -> Iterator[Pair]:
    for case in map(json.loads, path.open(encoding="utf-8")):
        if isinstance(case["input"], dict) and case["id"].startswith("A"):
            for pair, reward in zip(case["input"].get("pairs", []), case["expected"].get("rewards", [])):
                if reward is not None:
                    yield case["input"]["title"], pair["gold"], pair["output"], reward


def installed(name: str) -> bool:
    package = GRADERS[name][1].replace("-", "_")
    return importlib.util.find_spec(package) is not None


def errors(name: str, pairs: list[Pair]) -> dict[str, Any]:
    """Pairs that a grader pays unjustly, and those that it fails to pay."""
    found: dict[str, Any] = {"version": _version(GRADERS[name][1]), "paid": [], "unpaid": []}
    worker, connection = start(name)
    for kind, gold, output, reward in pairs:
        connection.send((gold, output))
        if connection.poll(SECONDS):
            paid = connection.recv()
        else:
            worker.kill()
            (worker, connection), paid = start(name), 0.0
        if paid != reward:
            found["paid" if paid else "unpaid"].append([kind, gold, output])
    worker.kill()
    return found


def start(name: str) -> tuple[multiprocessing.Process, Connection]:
    """A process of a grader, which may have children, and its pipe."""
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=serve, args=(name, there))
    worker.start()
    return worker, here


def serve(name: str, connection: Connection) -> None:
    logging.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 some print what they cannot read
    grader = GRADERS[name][0]()
    while True:
        gold, output = connection.recv()
        try:
            paid = float(bool(grader(gold, output)))
        except BaseException:
            paid = 0.0
        connection.send(paid)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def table(results: dict[str, dict[str, Any]], pairs: list[Pair]) -> str:
    """In Markdown: errors by kind, then all of them, unjust payments before missing ones."""
    count = Counter(kind for kind, *_ in pairs)
    rows = [["", "pairs", *(f"{name} {found['version']}".strip() for name, found in results.items())]]
    rows.append(["---"] * len(rows[0]))
    for kind, total in [*count.items(), ("**all**", len(pairs))]:
        cells = []
        for found in results.values():
            paid, unpaid = (sum(kind in (error[0], "**all**") for error in found[side]) for side in ("paid", "unpaid"))
            cells.append(f"{paid} + {unpaid}" if paid or unpaid else "·")
        rows.append([kind, str(total), *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
