"""Makes recipes/shapes/data: pictures, and questions about them for training and to be held out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from scenes import SIDE, Problem, problem

FOLDER = Path(__file__).parent / "data"
TRAIN, HELD_OUT = 1920, 400
SEEDS = {"train": 1, "heldout": 2, "warm-up": 3}


def held_out() -> list[Problem]:
    """The held-out problems; no other picture is one of theirs."""
    return _distinct("heldout", HELD_OUT, set())


def train() -> list[Problem]:
    return _distinct("train", TRAIN, {p.shapes for p in held_out()})


def warm_up() -> Iterator[Problem]:
    """Problems without end, none of which has the picture of a held-out one."""
    taken = {p.shapes for p in held_out()}
    random = Random(SEEDS["warm-up"])
    while True:
        if (drawn := problem(random)).shapes not in taken:
            yield drawn


def _distinct(name: str, count: int, taken: set[Any]) -> list[Problem]:
    """Problems whose pictures differ, and are not among those taken."""
    random, found = Random(SEEDS[name]), {}
    while len(found) < count:
        drawn = problem(random)
        if drawn.shapes not in taken:
            found.setdefault(drawn.shapes, drawn)
    return list(found.values())


def write(name: str, problems: Sequence[Problem]) -> None:
    (FOLDER / name).mkdir(parents=True)
    rows = []
    for number, p in enumerate(problems, start=1):
        image = f"{name}/{number:04}.png"
        p.picture().save(FOLDER / image)
        question, *rephrasings = (f"<image>{wording}" for wording in p.wordings)
        row = {"question": question, "image": image, "answer": p.answer, "task": p.task, "choices": p.choices}
        rows.append({**row, "width": SIDE, "height": SIDE, "rephrasings": rephrasings})
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    write("train", train())
    write("heldout", held_out())


if __name__ == "__main__":
    main()
