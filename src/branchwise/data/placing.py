"""Images of a row: which cells hold them, where in its prompt they stand, and what changes with their size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from branchwise.data.images import PLACEHOLDER, ImageError, Limits, Picture, moved, pictures
from branchwise.tree import Prompt

COLUMNS = ("images", "image")
SOURCES = ("image", "image_url", "url", "path", "bytes", "base64")
"""Where a message's part may name its image."""
KINDS = ("image", "image_url")
"""Types of a message's parts that stand for an image."""
PLACE: dict[str, Any] = {"type": "image"}


def row_pictures(
    row: Mapping[str, Any], prompt: Any, folder: Path, limits: Limits, column: str | None = None
) -> tuple[Picture, ...]:
    """The images of a row, in the order in which they stand in its prompt.

    They are those of a column, by default `images` or `image`; a part of a message that names its own image takes none
    of them.

    Args:
        prompt: the question's cell, text or messages.
        folder: of the data's file, for relative paths.

    Raises:
        ImageError: one cannot be had, or there are more or fewer than parts to show them.
    """
    columns = COLUMNS if column is None else (column,)
    given = list(pictures(next((row[c] for c in columns if row.get(c) is not None), None), folder, limits))
    named = [_source(part) for part in _parts(prompt) if _is_place(part)]
    if not named:
        return tuple(given)
    own = iter(pictures([source for source in named if source is not None], folder, limits))
    if (asked := named.count(None)) != len(given):
        raise ImageError(f"its messages have {asked} places for images, and its column has {len(given)}")
    rest = iter(given)
    return tuple(next(rest if source is None else own) for source in named)


def placed(prompt: Prompt, count: int) -> Prompt:
    """A prompt as messages with `count` parts `{"type": "image"}`: where `<image>` stands, else before the question.

    Raises:
        ImageError: it has places for more or fewer.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    split = [dict(m, content=_split(m["content"]) if m["role"] == "user" else m["content"]) for m in messages]
    places = sum(_is_place(part) for part in _parts(split))
    if places == 0:
        last = max(i for i, message in enumerate(split) if message["role"] == "user")
        split[last] = {**split[last], "content": [PLACE] * count + split[last]["content"]}
    elif places != count:
        raise ImageError(f"{count} images, but {places} places for them")
    return split


def resized(row: dict[str, Any], shown: Sequence[Picture], boxes: Sequence[str]) -> dict[str, Any]:
    """A row whose coordinates have gone along with the size of its first image; with that image's width and height.

    Args:
        boxes: columns of pixel coordinates.

    Raises:
        ImageError: one of these holds something else.
    """
    (own, size) = shown[0].own, shown[0].size
    scale = size[0] / own[0], size[1] / own[1]
    kept = {} if boxes and own != size else {name: row[name] for name in ("width", "height") if row.get(name)}
    reference = size if boxes else own
    row = {**row, "width": reference[0], "height": reference[1], **kept}
    for column in boxes if own != size else ():
        if row.get(column) is not None:
            try:
                row[column] = moved(_read(row[column]), scale)
            except ImageError as error:
                raise ImageError(f"its column {column}, which data.boxes names, is {error}") from None
    return row


def _read(value: Any) -> Any:
    """Coordinates that are written as JSON, as CSV files have them."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _parts(prompt: Any) -> Iterator[Any]:
    for message in prompt if isinstance(prompt, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        yield from content if isinstance(content, list) else ()


def _is_place(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in KINDS


def _source(part: Mapping[str, Any]) -> Any:
    return next((part[key] for key in SOURCES if part.get(key) is not None), None)


def _split(content: Any) -> list[Any]:
    """Parts, with those that are text cut at the placeholders in it; images without their source."""
    if isinstance(content, str):
        texts = content.split(PLACEHOLDER)
        parts: list[Any] = [part for text in texts for part in (PLACE, {"type": "text", "text": text})][1:]
        return [part for part in parts if part is PLACE or part["text"]]
    found = []
    for part in content:
        if _is_place(part):
            found.append(PLACE)
        elif isinstance(part, str):
            found += _split(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            found += _split(part["text"])
        else:
            found.append(part)
    return found
