"""Images of all kinds that datasets hold, decoded to 8-bit RGB the way they are meant to be seen."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

PLACEHOLDER = "<image>"
"""Where in a question's text an image stands."""
LARGEST_DOWNLOAD = 1 << 26
"""Bytes of an image behind a URL."""
BACKGROUND = (255, 255, 255)
"""What is seen through transparent parts."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{32,}={0,2}\s*")
_DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*?(?P<base64>;base64)?,", re.IGNORECASE)


class ImageError(ValueError):
    """An image that cannot be had or read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How an image is fitted before the model's processor sees it, and where it may come from."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    """Width times height; images with more are made smaller, those with fewer than `min_pixels` larger."""
    urls: bool = False
    """Whether http(s) URLs are fetched."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The size within the limits that is nearest to an image's own and has its shape, to a pixel."""
        pixels = width * height
        bound = max(pixels, self.min_pixels or 0)
        bound = bound if self.max_pixels is None else min(bound, self.max_pixels)
        if bound == pixels:
            return width, height
        scale = math.sqrt(bound / pixels)
        round_ = math.floor if bound < pixels else math.ceil
        return max(1, round_(width * scale)), max(1, round_(height * scale))


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of a question: where it is, and the size at which it is shown."""

    source: Path | bytes | Image.Image
    own: tuple[int, int]
    """Width and height as decoded."""
    size: tuple[int, int]
    """Width and height as shown."""

    def image(self) -> Image.Image:
        """The image in RGB, at its size.

        Raises:
            ImageError: the file is no longer what it was.
        """
        image = decode(self.source)
        return image if image.size == self.size else image.resize(self.size, Image.Resampling.BICUBIC)

    @property
    def name(self) -> str:
        """What logs call it: its path, or a file of the run's folder that bears the beginning of its SHA-256."""
        return str(self.source) if isinstance(self.source, Path) else f"images/{digest(self.source)}.png"


def digest(source: Path | bytes | Image.Image) -> str:
    """The beginning of the SHA-256 of an image's file, or of what is in memory of it."""
    content = source.tobytes() if isinstance(source, Image.Image) else source
    content = content.read_bytes() if isinstance(content, Path) else content
    return hashlib.sha256(content).hexdigest()[:16]


def pictures(value: Any, folder: Path, limits: Limits) -> tuple[Picture, ...]:
    """The images of a cell: one, a list of them, or none.

    Args:
        value: paths (relative to `folder`), bytes, base64, data or file URLs, http(s) URLs where they are allowed, PIL
            images, or the mappings in which datasets wrap these (`bytes`, `path`, `image`, `url`).
        folder: of the data's file.
        limits: sizes and origins that are allowed.

    Raises:
        ImageError: one cannot be had, or is damaged: each is decoded to its end.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ()
    if isinstance(value, str) and not value.strip():
        return ()
    parts = (
        value
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
        else [value]
    )
    found = []
    for number, part in enumerate(parts, start=1):
        try:
            found.append(picture(part, folder, limits))
        except ImageError as error:
            which = f"image {number} of {len(parts)}" if len(parts) > 1 else "its image"
            raise ImageError(f"{which}: {error}") from None
    return tuple(found)


def picture(value: Any, folder: Path, limits: Limits) -> Picture:
    """One image, decoded once to see that it can be."""
    source = locate(value, folder, limits)
    own = decode(source).size
    return Picture(source, own, limits.size(*own))


def locate(value: Any, folder: Path, limits: Limits) -> Path | bytes | Image.Image:
    """Where an image's content is: a file, or the content itself."""
    if isinstance(value, Mapping):
        kinds = ("bytes", "image", "path", "url", "image_url", "base64")
        value = next((value[kind] for kind in kinds if value.get(kind) is not None), None)
        if value is None:
            raise ImageError(f"a mapping without any of {', '.join(kinds)}")
        return locate(value, folder, limits)
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Path):
        return _file(folder / value)
    if not isinstance(value, str):
        raise ImageError(f"{type(value).__name__} is no image; give a path, bytes, base64, a URL or a PIL image")
    return _located(value.strip(), folder, limits)


def _located(text: str, folder: Path, limits: Limits) -> Path | bytes:
    scheme = urlsplit(text[:64]).scheme.lower() if ":" in text[:64] else ""
    if scheme == "data":
        head = _DATA_URL.match(text)
        if head is None:
            raise ImageError(f"no data URL: {text[:40]!r}")
        body = unquote(text[head.end() :])
        return _base64(body) if head["base64"] else body.encode("latin-1", "replace")
    if scheme == "file":
        return _file(Path(unquote(urlsplit(text).path)))
    if scheme in ("http", "https"):
        if not limits.urls:
            raise ImageError(f"{text[:80]} is behind a URL; fetch it beforehand, or set data.image_urls: true")
        return _download(text)
    if len(text) < 1024 and (path := folder / text).is_file():
        return path
    if _BASE64.fullmatch(text):
        try:
            return _base64(text)
        except ImageError:
            if len(text) >= 1024:
                raise
    return _file(folder / text)


def _file(path: Path) -> Path:
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise ImageError(f"no file {str(path)[:200]}")
    return path


def _base64(text: str) -> bytes:
    packed = "".join(text.split()).translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("no base64, though it looks like it") from None


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            content = answer.read(LARGEST_DOWNLOAD + 1)
    except OSError as error:
        raise ImageError(f"{url[:80]} cannot be fetched: {error}") from None
    if len(content) > LARGEST_DOWNLOAD:
        raise ImageError(f"{url[:80]} has more than {LARGEST_DOWNLOAD >> 20} MiB")
    return content


def decode(source: Path | bytes | Image.Image) -> Image.Image:
    """The image in 8-bit RGB, upright (EXIF), whole, on white where it is transparent.

    Raises:
        ImageError: it is no image, damaged, or cut short.
    """
    try:
        if isinstance(source, Image.Image):
            return _rgb(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            return _rgb(image)
    except UnidentifiedImageError:
        raise ImageError("it is no image of a known kind") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, Image.DecompressionBombError) as error:
        raise ImageError(f"it cannot be decoded: {error}") from None


def _rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I", "F") or upright.mode.startswith("I;16"):
        upright = _narrow(upright)
    if upright.has_transparency_data:
        clear = upright.convert("RGBA")
        ground = Image.new("RGBA", clear.size, (*BACKGROUND, 255))
        return Image.alpha_composite(ground, clear).convert("RGB")
    return upright.copy() if upright.mode == "RGB" else upright.convert("RGB")


def _narrow(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits, or of floats, in 8 bits; PIL's own conversion cuts off what is above 255."""
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ImageError("it has pixels that are no finite numbers")
    top = values.max(initial=0.0)
    if image.mode == "F":
        full = 1.0 if top <= 1 else 255.0 if top <= 255 else 65535.0
    else:
        full = 65535.0 if image.mode.startswith("I;16") or top > 255 else 255.0
    return Image.fromarray(np.clip(values * (255.0 / full) + 0.5, 0, 255).astype(np.uint8))


def moved(value: Any, scale: tuple[float, float]) -> Any:
    """Pixel coordinates x, y, x, y … of an image after a change of its size: a box, a point, or lists of these.

    Args:
        scale: new width and height, as shares of the old.

    Raises:
        ImageError: there are others than numbers, or an odd number of them.
    """
    if not isinstance(value, list | tuple):
        raise ImageError(f"no list of coordinates: {value!r}")
    if value and all(isinstance(part, list | tuple) for part in value):
        return [moved(part, scale) for part in value]
    if len(value) % 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        raise ImageError(f"no x, y, x, y …: {value!r}")
    return [v * scale[i % 2] for i, v in enumerate(value)]
