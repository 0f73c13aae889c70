"""The built-in reward for finding an object: how well its box is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchwise.rewards.coordinates import System, numbers, read_box, scaled
from branchwise.rewards.geometry import box_iou
from branchwise.rewards.response import answer_texts


def box(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    width: Sequence[float] | None = None,
    height: Sequence[float] | None = None,
    coordinates: System = "pixels",
    output_coordinates: System | None = None,
    threshold: float | None = None,
    **_: Any,
) -> list[float | None]:
    """Intersection over union of the last box in the answer and the reference; None where the reference is no box.

    Args:
        completions, answers: as for `math`.
        answer: reference boxes, [x1, y1, x2, y2].
        width, height: of the images, in pixels; needed where only one of the systems is of pixels.
        coordinates: the references' system.
        output_coordinates: the model's; default: the same.
        threshold: pay 1 from this overlap on, and 0 below it.

    Raises:
        ConfigError: systems that are none, or that cannot be compared without the images' sizes.
    """
    found = answer_texts(completions, answers)
    sizes = image_sizes(width, height, len(found))
    systems = (coordinates, output_coordinates or coordinates)
    rewards = [explain(text, reference, size, *systems)[0] for text, reference, size in zip(found, answer, sizes)]
    return rewards if threshold is None else [None if r is None else float(r >= threshold) for r in rewards]


def explain(
    text: str,
    reference: Any,
    size: tuple[float, float] | None = None,
    coordinates: System = "pixels",
    output_coordinates: System = "pixels",
) -> tuple[float | None, str]:
    """The reward of one text without its thought, and the reason for it."""
    if size is None:
        check_systems(coordinates, output_coordinates)
    values = numbers(reference, 4)
    gold = values and scaled(values, coordinates, size)
    if not gold:
        return None, f"the reference is no box in {coordinates}: {reference!r}"
    given = read_box(text)
    if given is None:
        return 0.0, "no box"
    placed = scaled(given, output_coordinates, size)
    if placed is None:
        return 0.0, f"not in {output_coordinates}: {list(given)}"
    if placed[0] > placed[2] or placed[1] > placed[3]:
        return 0.0, f"corners in the wrong order: {list(given)}"
    return box_iou(gold, placed), f"overlap of {list(given)} with {list(values or ())}"


def image_sizes(
    width: Sequence[float] | None, height: Sequence[float] | None, count: int
) -> list[tuple[float, float] | None]:
    if width is None or height is None:
        return [None] * count
    return [(w, h) if w and h else None for w, h in zip(width, height)]


def check_systems(coordinates: System, output_coordinates: System) -> None:
    from branchwise.errors import ConfigError

    if coordinates != output_coordinates and "pixels" in (coordinates, output_coordinates):
        raise ConfigError(
            f"coordinates: {coordinates!r} and output_coordinates: {output_coordinates!r} can be compared only where "
            "the columns width and height tell the images' sizes"
        )
