"""Boxes, points and trajectories: how near they are to each other. Coordinates are of any one system."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""x1, y1, x2, y2: two corners, the first nearer to the origin."""


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes as continuous areas; no pixel is added.

    0 where a box has no area, a coordinate that is no finite number, or corners in the wrong order.
    """
    areas = [_area(box) for box in (a, b)]
    if not all(areas):
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    return shared / (sum(areas) - shared)


def point_in_box(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether a point is in a box or on its edge."""
    x, y = point
    return bool(_area(box)) and box[0] <= x <= box[2] and box[1] <= y <= box[3]


def discrete_frechet(a: Sequence[Point], b: Sequence[Point]) -> float:
    """The least over all ways to go along both, point by point without going back, of the largest distance met.

    Eiter and Mannila, "Computing discrete Fréchet distance", 1994.
    """
    last: list[float] = []
    for i, p in enumerate(a):
        row: list[float] = []
        for j, q in enumerate(b):
            before = [row[j - 1]] if j else []
            before += [last[j]] if i else []
            before += [last[j - 1]] if i and j else []
            row.append(max(min(before, default=0.0), math.dist(p, q)))
        last = row
    return last[-1]


def hausdorff(a: Sequence[Point], b: Sequence[Point]) -> float:
    """The largest distance from a point of either to the nearest point of the other."""
    return max(_directed(a, b), _directed(b, a))


def rmse(a: Sequence[Point], b: Sequence[Point]) -> float:
    """The root of the mean squared distance between points of the same number.

    Trajectories of different lengths are first resampled, at equal steps along each, to the longer one's count.
    """
    if len(a) != len(b):
        count = max(len(a), len(b), 2)
        a, b = resample(a, count), resample(b, count)
    return math.sqrt(sum(math.dist(p, q) ** 2 for p, q in zip(a, b)) / len(a))


def resample(points: Sequence[Point], count: int) -> list[Point]:
    """`count` points at equal steps along a trajectory, its ends among them."""
    steps = [math.dist(p, q) for p, q in pairwise(points)]
    total = sum(steps)
    if total == 0:
        return [points[0]] * count
    found, passed, place = [], 0.0, 0
    for k in range(count):
        goal = total * k / (count - 1)
        while place < len(steps) - 1 and passed + steps[place] < goal:
            passed += steps[place]
            place += 1
        share = min(1.0, (goal - passed) / steps[place]) if steps[place] else 0.0
        (x, y), (u, v) = points[place], points[place + 1]
        found.append((x + share * (u - x), y + share * (v - y)))
    return found


DISTANCES: dict[str, Callable[[Sequence[Point], Sequence[Point]], float]] = {
    "frechet": discrete_frechet,
    "hausdorff": hausdorff,
    "rmse": rmse,
}


def _area(box: Sequence[float]) -> float:
    if not all(map(math.isfinite, box)) or box[0] > box[2] or box[1] > box[3]:
        return 0.0
    return (box[2] - box[0]) * (box[3] - box[1])


def _directed(a: Sequence[Point], b: Sequence[Point]) -> float:
    return max(min(math.dist(p, q) for q in b) for p in a)
