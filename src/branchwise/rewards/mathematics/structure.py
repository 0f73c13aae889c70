"""Answers of several parts: tuples, sets, lists, matrices, and what `\\pm` stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MOST = 64
"""Parts; answers of more are compared as text alone."""
_OPENINGS, _CLOSINGS = "{([", "})]"
_BRACKET = re.compile(r"\\?[{(\[\])}]|\\lfloor|\\rfloor|\\lceil|\\rceil")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_MATRIX = re.compile(
    r"(?P<factor>.*?)(?P<open>[(\[|]|\\\{)? ?\\begin ?\{(?P<kind>[pbvBV]?(?:small)?matrix|array)\}(?: ?\{[lcr| ]*\})?"
    r"(?P<cells>.*)\\end ?\{(?P=kind)\} ?(?(open)(?:[)\]|]|\\\}))"
)


@dataclass(frozen=True, slots=True)
class Parts:
    brackets: str
    """'()', '[)' and so on; '' for sets and bare lists, whose order does not count."""
    items: tuple[str, ...]

    @property
    def is_ordered(self) -> bool:
        return bool(self.brackets)


@dataclass(frozen=True, slots=True)
class Matrix:
    is_determinant: bool
    rows: tuple[tuple[str, ...], ...]


def read_parts(text: str) -> Parts | None:
    """The items of a set, or of a tuple, interval or bare list of two or more."""
    opening = next((o for o in ("(", "[", "\\{") if text.startswith(o)), "")
    if opening and not is_enclosed(text):
        opening = ""
    closing = text[len(text) - len(opening) :] if opening else ""
    inner = text[len(opening) : len(text) - len(closing)]
    if not opening and _THOUSANDS.fullmatch(text):
        return None
    items = split(inner, thousands=not opening)
    if len(items) > _MOST or not all(items):
        return None
    if opening == "\\{":
        return Parts("", items) if closing == "\\}" and "|" not in inner and ":" not in inner else None
    return Parts(opening + closing, items) if len(items) > 1 else None


def read_matrix(text: str) -> Matrix | None:
    """The cells of a matrix, in LaTeX or as a list of lists; a factor before it goes into the cells."""
    if "\\begin" not in text:
        return _listed(text)
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match["cells"]:
        return None
    rows = re.split(r"\\\\(?: ?\[[^\]]*\])?", match["cells"].strip())
    cells = tuple(tuple(cell.strip() for cell in row.split("&")) for row in rows if row.strip())
    factor = match["factor"].strip().removesuffix("\\cdot").strip()
    if not cells or len({len(row) for row in cells}) > 1 or sum(map(len, cells)) > _MOST:
        return None
    if factor == "-":
        factor = "-1"
    if factor:
        cells = tuple(tuple(f"({factor})*({cell})" for cell in row) for row in cells)
    return Matrix(match["kind"] in ("vmatrix", "Vmatrix") or match["open"] == "|", cells)


def _listed(text: str) -> Matrix | None:
    """`[[1, 2], [3, 4]]`."""
    if not (text.startswith("[[") and text.endswith("]]")):
        return None
    outer = read_parts(text)
    rows = [read_parts(row) for row in (outer.items if outer else (text[1:-1],))]
    if not all(row and row.brackets == "[]" for row in rows):
        return None
    cells = tuple(row.items for row in rows if row)
    return Matrix(False, cells) if len({len(row) for row in cells}) == 1 else None


def split(text: str, thousands: bool = False) -> tuple[str, ...]:
    """At the commas, semicolons and words for them outside all brackets.

    With `thousands`, commas within numbers such as 2,500 do not split where other commas have a space after them.
    """
    separator = r"[,;] ?(?:and|or) |[,;]| (?:and|or) "
    if thousands and re.search(r", |;| and | or ", text):
        separator = r"[,;] ?(?:and|or) |(?<=\d),(?!\d{3}(?!\d))|(?<!\d),|;| (?:and|or) "
    parts, start, depth = [], 0, 0
    for match in re.finditer(rf"\\[lr](?:floor|ceil)|\\?[{{(\[]|\\?[\])}}]|{separator}", text):
        token = match[0]
        if token[-1] in _OPENINGS:
            depth += 1
        elif token[-1] in _CLOSINGS:
            depth -= 1
        elif depth == 0 and not token.startswith("\\"):
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return (*parts, text[start:].strip())


def is_enclosed(text: str) -> bool:
    """Whether the bracket that opens a text closes at its end."""
    depth = 0
    for match in re.finditer(r"\\?[{(\[\])}]", text):
        depth += 1 if match[0][-1] in _OPENINGS else -1
        if depth == 0:
            return match.end() == len(text)
    return False


def expand_signs(text: str) -> str:
    """`1 \\pm \\sqrt{2}` as the list of both values; in a list or set, item by item."""
    text = re.sub(r"\+ ?/? ?-(?= ?[\d\\A-Za-z(])", r"\\pm ", text)
    if not _EITHER_SIGN.search(text):
        return text
    name, equals, value = text.rpartition("=") if re.match(r"[A-Za-z]\w? ?=", text) else ("", "", text)
    parts = read_parts(value.strip())
    if parts and parts.is_ordered:
        return text
    items = parts.items if parts else (value.strip(),)
    return f"{name}{equals}" + ", ".join(_both(item) for item in items)


def _both(item: str) -> str:
    if not _EITHER_SIGN.search(item):
        return item
    upper = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", item))
    lower = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", item))
    return ", ".join(value.removeprefix("+").strip() for value in (upper.strip(), lower.strip()))
