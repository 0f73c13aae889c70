"""The built-in reward for drawing a path: how near it runs to the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from branchwise.errors import ConfigError
from branchwise.rewards.box import check_systems, image_sizes
from branchwise.rewards.coordinates import System, numbers, read_trajectory, scaled
from branchwise.rewards.geometry import DISTANCES, Point
from branchwise.rewards.response import answer_texts


def trajectory(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    width: Sequence[float] | None = None,
    height: Sequence[float] | None = None,
    coordinates: System = "pixels",
    output_coordinates: System | None = None,
    distance: Literal["frechet", "hausdorff", "rmse"] = "frechet",
    reach: float = 0.2,
    **_: Any,
) -> list[float | None]:
    """1 − distance / reach, at least 0, of the points in the answer from the reference's; other arguments as for `box`.

    Args:
        answer: reference points, [[x, y], …], two or more.
        distance: discrete Fréchet, Hausdorff, or the root mean square.
        reach: the distance that pays nothing: a share of the image's sides, or pixels where the coordinates are pixels
            and no sizes are given.

    Raises:
        ConfigError: a distance that is none, a reach that is not positive, or what `box` raises.
    """
    if distance not in DISTANCES:
        raise ConfigError(f"distance: {distance!r} is none; choose one of {', '.join(DISTANCES)}")
    if not reach > 0:
        raise ConfigError(f"reach: {reach} pays nothing; give a distance above 0")
    found = answer_texts(completions, answers)
    output = output_coordinates or coordinates
    rewards: list[float | None] = []
    for text, reference, size in zip(found, answer, image_sizes(width, height, len(found))):
        if size is None:
            check_systems(coordinates, output)
        gold = _points(numbers(reference), coordinates, size)
        flat = [value for point in read_trajectory(text) or [] for value in point]
        given = _points(flat, output, size)
        far = DISTANCES[distance](gold, given) if gold and given else reach
        rewards.append(max(0.0, 1 - far / reach) if gold else None)
    return rewards


def _points(values: Sequence[float] | None, system: System, size: tuple[float, float] | None) -> list[Point] | None:
    if not values or len(values) < 4 or len(values) % 2:
        return None
    placed = scaled(values, system, size)
    return list(zip(placed[::2], placed[1::2])) if placed else None
