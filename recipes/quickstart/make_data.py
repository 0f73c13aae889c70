"""Makes train.jsonl and heldout.jsonl: sums from reasoning-gym, and rewordings from the templates below."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Set
from pathlib import Path
from random import Random
from typing import Any

import reasoning_gym

HERE = Path(__file__).parent
Numbers = tuple[int, ...]
TASK: dict[str, Any] = {
    "min_terms": 3,
    "max_terms": 3,
    "min_digits": 1,
    "max_digits": 1,
    "operators": ["+"],
    "allow_parentheses": False,
    "allow_negation": False,
}
TRAIN = {"seed": 1, "size": 320}
HELD_OUT = {"seed": 1_000_000, "size": 200}
"""reasoning-gym's item i is drawn from seed + i: seeds this far apart never meet."""
EXAMPLES = {(2, 3, 4), (1, 5, 8), (6, 7, 9)}
"""The worked examples in config.yaml, in order of size: no question may be one of them, in any order."""

PLAIN = [
    "What is {a} + {b} + {c}?",
    "Work out {a} + {b} + {c}.",
    "Find the value of {a} + {b} + {c}.",
    "{a} + {b} + {c} equals what?",
    "Evaluate the sum {a} + {b} + {c}.",
]
WORDS = [
    "Add {a}, {b} and {c}.",
    "What do you get when you add {a}, {b} and {c}?",
    "Find the sum of {a}, {b} and {c}.",
    "How much is {a} plus {b} plus {c}?",
    "Start with {a}, add {b}, then add {c}. What is the result?",
]
STORIES = [
    "Ann found {a} of the shells, Ben found {b} and Cleo found {c}. How many shells did they find altogether?",
    "A baker sold this many loaves: Monday {a}, Tuesday {b}, Wednesday {c}. How many loaves is that in all?",
    "Marbles in a bag: {a} red, {b} blue and {c} green. How many marbles are in the bag?",
    "A team's scores in three games were {a}, {b} and {c}. What was its total score?",
    "Three buses carry {a}, {b} and {c} passengers. How many passengers do they carry together?",
]


def sums(seed: int, size: int, taken: Set[Numbers]) -> list[tuple[dict[str, Any], list[int]]]:
    """Distinct reasoning-gym items with their numbers, leaving out sums of numbers that are `taken`, in any order."""
    found: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for entry in reasoning_gym.create_dataset("basic_arithmetic", seed=seed, size=10 * size, **TASK):
        numbers = [int(n) for n in re.findall(r"\d+", entry["question"])]
        if tuple(sorted(numbers)) not in taken:
            found.setdefault(entry["question"], (entry, numbers))
    return list(found.values())[:size]


def rephrasings(numbers: list[int], random: Random) -> list[str]:
    """One rewording with signs, one in words and one as a story."""
    a, b, c = numbers
    return [random.choice(templates).format(a=a, b=b, c=c) for templates in (PLAIN, WORDS, STORIES)]


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    held_out = sums(**HELD_OUT, taken=EXAMPLES)
    train = sums(**TRAIN, taken=EXAMPLES | {tuple(sorted(numbers)) for _, numbers in held_out})
    random = Random(0)
    write(HERE / "heldout.jsonl", ({"question": e["question"], "answer": e["answer"]} for e, _ in held_out))
    write(
        HERE / "train.jsonl",
        (
            {"question": e["question"], "answer": e["answer"], "rephrasings": rephrasings(numbers, random)}
            for e, numbers in train
        ),
    )


if __name__ == "__main__":
    main()
