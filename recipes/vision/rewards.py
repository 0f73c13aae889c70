"""Rewards of tasks that no built-in one fits: short answers in words, and a gripper's contact."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from branchwise.rewards.coordinates import read_trajectory
from branchwise.rewards.mathematics.extraction import last_tagged


def short_answer(answers: list[str], answer: list[str | list[str]], **_: Any) -> list[float]:
    """ANLS (arXiv 1905.13648): 1 − edit distance / length to the nearest reference, 0 below one half."""
    given = [_plain(last_tagged(text) or text) for text in answers]
    references = [[reference] if isinstance(reference, str) else reference for reference in answer]
    near = [max(_likeness(text, _plain(one)) for one in some) for text, some in zip(given, references)]
    return [likeness if likeness >= 0.5 else 0.0 for likeness in near]


def contact(answers: list[str], answer: list[list[float]], direction: list[list[float]], **_: Any) -> list[float]:
    """Pay a contact in the reference's box by the cosine of its pull to the right direction, at least 0.

    Responses end in [[x, y], [dx, dy]]: the point of contact, and the way to pull from there. A simulator's verdict, a
    function with this signature, can stand in its place.

    Args:
        answer: boxes within which a contact holds, [x1, y1, x2, y2], in pixels.
        direction: the right ways to pull, [dx, dy] in the image, of any length but 0.
    """
    return [_pull(read_trajectory(text), *reference) for text, *reference in zip(answers, answer, direction)]


def _pull(given: list[tuple[float, float]] | None, box: list[float], right: list[float]) -> float:
    if given is None or len(given) != 2:
        return 0.0
    (x, y), way = given
    length = math.hypot(*way) * math.hypot(*right)
    if not (box[0] <= x <= box[2] and box[1] <= y <= box[3]) or length == 0:
        return 0.0
    return max(0.0, (way[0] * right[0] + way[1] * right[1]) / length)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .")


def _likeness(a: str, b: str) -> float:
    """1 − the share of the longer text's characters that must be put in, left out or changed."""
    row = list(range(len(b) + 1))
    for i, of_a in enumerate(a, start=1):
        last, row = row, [i]
        for j, of_b in enumerate(b, start=1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (of_a != of_b)))
    return 1 - row[-1] / max(len(a), len(b), 1)
