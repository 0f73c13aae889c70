"""Coordinates as models write them, in the system that the dataset declares."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from branchwise.errors import ConfigError
from branchwise.rewards.mathematics.extraction import last_box

System = Literal["pixels", "unit", "thousand"]
"""Pixels of the image; 0 to 1 of its width and height; 0 to 1000 of them."""
LARGEST = {"pixels": math.inf, "unit": 1.0, "thousand": 1000.0}
"""Of a coordinate; the least is 0, of pixels any."""
_LONGEST = 20_000
_MOST_POINTS = 500
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
_NAN = re.compile(r"\bnan\b|\binf(?:inity)?\b", re.IGNORECASE)
_SPECIAL = re.compile(r"<\|?/?[A-Za-z_]+\|?>")
_KEY = re.compile(r"[\"']?\b[A-Za-z_]\w*[\"']?\s*[:=]\s*")
_QUOTED = re.compile(rf"[\"']\s*({_NUMBER})\s*[\"']")
_CORNERS = {
    name: corner
    for corner, names in {
        "x1": "x1 xmin left x", "y1": "y1 ymin top y", "x2": "x2 xmax right", "y2": "y2 ymax bottom",
        "width": "width w", "height": "height h",
    }.items()
    for name in names.split()
}  # fmt: skip
_NAMED = re.compile(
    rf"(?<![A-Za-z])[\"']?([xy]_?(?:1|2|min|max)|[xywh]|left|top|right|bottom|width|height)[\"']?\s*[:=]\s*({_NUMBER})",
    re.IGNORECASE,
)
_GROUP = re.compile(rf"[\[(]\s*({_NUMBER}(?:\s*[,\s]\s*{_NUMBER})*)\s*[\])]")


def read_box(text: str) -> tuple[float, ...] | None:
    """The last box in a text, as JSON, as `<box>(x1,y1),(x2,y2)</box>` or as four numbers; None where there is none."""
    if (named := _named_box(text)) is not None:
        return named
    groups = [group for group in _groups(text) if len(group) > 1]
    if [len(group) for group in groups[-2:]] == [4, 2]:  # a point within it may follow
        groups = groups[:-1]
    if groups and len(groups[-1]) == 4:
        return groups[-1]
    if len(groups) >= 2 and len(groups[-1]) == len(groups[-2]) == 2:
        return groups[-2] + groups[-1]
    numbers = _bare(text, groups)
    return numbers if len(numbers) == 4 else None


def _named_box(text: str) -> tuple[float, ...] | None:
    """The last box of a text whose coordinates are named: by its corners, in any order, or by a corner and its size."""
    box = _named(text, 4)
    if box.keys() == {"x1", "y1", "x2", "y2"}:
        return box["x1"], box["y1"], box["x2"], box["y2"]
    if box.keys() == {"x1", "y1", "width", "height"}:
        return box["x1"], box["y1"], box["x1"] + box["width"], box["y1"] + box["height"]
    return None


def _named(text: str, count: int) -> dict[str, float]:
    """The last named coordinates; none where a later place has no names."""
    text = (last_box(text) or text)[-_LONGEST:].replace('"', "")
    found = list(_NAMED.finditer(text))[-count:]
    if not found or any("," in group[1] for group in _GROUP.finditer(text[found[-1].end() :])):
        return {}
    return {_CORNERS[match[1].lower().replace("_", "")]: float(match[2]) for match in found}


def read_point(text: str) -> tuple[float, ...] | None:
    """The last point in a text; None where there is none."""
    named = _named(text, 2)
    if named.keys() == {"x1", "y1"}:
        return named["x1"], named["y1"]
    groups = [group for group in _groups(text) if len(group) > 1]
    if groups:
        return groups[-1] if len(groups[-1]) == 2 else None
    numbers = _bare(text, groups)
    return numbers if len(numbers) == 2 else None


def read_trajectory(text: str) -> list[tuple[float, float]] | None:
    """The points in a text, in order; None where there are fewer than two, or other groups of numbers among them."""
    groups = _groups(text)
    if not 2 <= len(groups) <= _MOST_POINTS or any(len(group) != 2 for group in groups):
        return None
    return [(group[0], group[1]) for group in groups]


def scaled(values: Sequence[float], system: System, size: tuple[float, float] | None) -> tuple[float, ...] | None:
    """x, y, x, y … as shares of the image's width and height; None where a value is outside of its system.

    Without a size, pixels stay pixels.

    Raises:
        ConfigError: a system that is none.
    """
    if system not in LARGEST:
        raise ConfigError(f"coordinates: {system!r} is none; choose one of {', '.join(LARGEST)}")
    least = -math.inf if system == "pixels" else 0.0
    if not all(math.isfinite(value) and least <= value <= LARGEST[system] for value in values):
        return None
    if system == "pixels":
        return tuple(values) if size is None else tuple(v / size[i % 2] for i, v in enumerate(values))
    return tuple(value / LARGEST[system] for value in values)


def numbers(value: Any, count: int | None = None) -> tuple[float, ...] | None:
    """A reference's finite numbers, from a list, nested lists of points, or a text; None where they are none."""
    if isinstance(value, str):
        found = read_box(value) if count == 4 else tuple(v for group in _groups(value) for v in group)
        return found or None
    flat: list[float] = []
    for item in value if isinstance(value, list | tuple) else [None]:
        part = numbers(item) if isinstance(item, list | tuple) else _finite(item)
        if part is None:
            return None
        flat += part
    return tuple(flat) if flat and count in (None, len(flat)) else None


def _finite(value: Any) -> tuple[float, ...] | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return (float(value),) if is_number else None


def _prepared(text: str) -> str:
    text = _QUOTED.sub(r"\1", _SPECIAL.sub(" ", (last_box(text) or text)[-_LONGEST:]))
    return _KEY.sub(lambda m: m[0] if "\n" in m[0] else " ", text)


def _groups(text: str) -> list[tuple[float, ...]]:
    """The numbers of each innermost pair of brackets; of `{"x": 1, "y": 2}`, too."""
    text = _prepared(text)
    if _NAN.search(text):
        return []
    text = text.replace("{", "[").replace("}", "]")
    return [tuple(map(float, re.findall(_NUMBER, match[1]))) for match in _GROUP.finditer(text)]


def _bare(text: str, groups: list[tuple[float, ...]]) -> tuple[float, ...]:
    """All numbers of a text without brackets and words, such as `10 20 30 40`."""
    text = _prepared(text).strip().rstrip(".")
    if groups or not re.fullmatch(rf"{_NUMBER}(?:\s*[,;\s]\s*{_NUMBER})*", text):
        return ()
    return tuple(map(float, re.findall(_NUMBER, text)))
