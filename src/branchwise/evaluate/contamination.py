"""Which evaluation problems stand in the training data: word n-grams, and where there are any images, in common."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NGRAM = 13
"""Words; GPT-3's choice (arXiv 2005.14165, appendix C)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's text, and digests of its images (`data.images.digest`)."""

    text: str
    images: frozenset[str] = frozenset()

    @property
    def shown(self) -> frozenset[str]:
        """The images; where there are none, one without a name, which such questions have in common."""
        return self.images or frozenset([""])


@dataclass(frozen=True, slots=True)
class Contamination:
    """What was found."""

    n: int
    """Words of an n-gram."""
    problems: int
    train_rows: int
    found: list[str] = field(default_factory=list)
    """Ids of the evaluation problems that share an n-gram with a training question."""

    @property
    def share(self) -> float:
        return len(self.found) / self.problems if self.problems else 0.0

    def __str__(self) -> str:
        return (
            f"{len(self.found)} of {self.problems} problems ({self.share:.1%}) share {self.n} words in a row "
            f"with one of {self.train_rows} training questions"
        )


def contamination(problems: dict[str, Asked], train: Iterable[Asked], n: int = NGRAM) -> Contamination:
    """Check problems (by id) against training questions.

    Texts are compared in lower case, as words and numbers alone. A problem counts where n of its words in a row stand
    in some training question; one shorter than n words where all of it does. Problems without a word never count. One
    with images counts where a training question has one of them, too.
    """
    words = {key: normalised(problem.text) for key, problem in problems.items()}
    lengths = sorted({min(n, len(w)) for w in words.values() if w})
    wanted: dict[int, set[tuple[str, ...]]] = {length: set() for length in lengths}
    for w in words.values():
        if w:
            wanted[min(n, len(w))].update(_grams(w, min(n, len(w))))
    seen: set[tuple[str, tuple[str, ...]]] = set()
    rows = 0
    for row in train:
        rows += 1
        found = normalised(row.text)
        for length in lengths:
            seen.update((image, g) for g in _grams(found, length) if g in wanted[length] for image in row.shown)
    hits = [
        key
        for key, w in words.items()
        if w and any((image, g) in seen for g in _grams(w, min(n, len(w))) for image in problems[key].shown)
    ]
    return Contamination(n, len(problems), rows, hits)


def normalised(text: str) -> list[str]:
    """Words and numbers, in lower case; thousands' commas within numbers are dropped."""
    text = unicodedata.normalize("NFKC", text).lower()
    return re.findall(r"[^\W_]+", re.sub(r"(?<=\d),(?=\d{3})", "", text))


def _grams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def asked(rows: Iterable[dict[str, Any]], folder: Path, image_column: str | None = None) -> Iterator[Asked]:
    """The questions and rephrasings of a table's rows.

    Args:
        folder: of the table's file, for relative paths of images.
        image_column: what holds a row's images; None: `images` or `image`.
    """
    from branchwise.data.questions import QUESTIONS, question_text

    for row in rows:
        key = next((name for name in QUESTIONS if row.get(name)), None)
        images = _images(row, row.get(key or ""), folder, image_column)
        if key:
            yield Asked(question_text(row[key]), images)
        rephrasings = row.get("rephrasings")
        if isinstance(rephrasings, list):
            yield from (Asked(text, images) for text in rephrasings if isinstance(text, str))


def _images(row: dict[str, Any], prompt: Any, folder: Path, column: str | None) -> frozenset[str]:
    """Digests of a row's images; of one that training leaves out, none."""
    from branchwise.data.images import ImageError, Limits, digest
    from branchwise.data.placing import row_pictures

    try:
        return frozenset(digest(picture.source) for picture in row_pictures(row, prompt, folder, Limits(), column))
    except ImageError:
        return frozenset()
