"""The built-in reward for pointing: whether a point is in the reference's box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchwise.rewards.box import check_systems, image_sizes
from branchwise.rewards.coordinates import System, numbers, read_point, scaled
from branchwise.rewards.geometry import point_in_box
from branchwise.rewards.response import answer_texts


def point(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    width: Sequence[float] | None = None,
    height: Sequence[float] | None = None,
    coordinates: System = "pixels",
    output_coordinates: System | None = None,
    **_: Any,
) -> list[float | None]:
    """1 where the last point in the answer is in the reference box or on its edge, else 0; arguments as for `box`."""
    found = answer_texts(completions, answers)
    output = output_coordinates or coordinates
    rewards: list[float | None] = []
    for text, reference, size in zip(found, answer, image_sizes(width, height, len(found))):
        if size is None:
            check_systems(coordinates, output)
        gold = scaled(numbers(reference, 4) or (), coordinates, size)
        given = scaled(read_point(text) or (), output, size)
        rewards.append(float(bool(given) and point_in_box(given or (), gold)) if gold else None)
    return rewards
