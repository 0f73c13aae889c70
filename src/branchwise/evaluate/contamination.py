"""Which evaluation problems stand in the training data: word n-grams in common."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

NGRAM = 13
"""Words; GPT-3's choice (arXiv 2005.14165, appendix C)."""


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


def contamination(problems: dict[str, str], train: Iterable[str], n: int = NGRAM) -> Contamination:
    """Check problems (texts by id) against training questions.

    Texts are compared in lower case, as words and numbers alone. A problem counts where n of its words in a row stand
    in some training question; one shorter than n words where all of it does. Problems without a word never count.
    """
    words = {key: normalised(text) for key, text in problems.items()}
    lengths = sorted({min(n, len(w)) for w in words.values() if w})
    wanted: dict[int, set[tuple[str, ...]]] = {length: set() for length in lengths}
    for w in words.values():
        if w:
            wanted[min(n, len(w))].update(_grams(w, min(n, len(w))))
    seen: set[tuple[str, ...]] = set()
    rows = 0
    for text in train:
        rows += 1
        row = normalised(text)
        for length in lengths:
            seen.update(g for g in _grams(row, length) if g in wanted[length])
    found = [key for key, w in words.items() if w and any(g in seen for g in _grams(w, min(n, len(w))))]
    return Contamination(n, len(problems), rows, found)


def normalised(text: str) -> list[str]:
    """Words and numbers, in lower case; thousands' commas within numbers are dropped."""
    text = unicodedata.normalize("NFKC", text).lower()
    return re.findall(r"[^\W_]+", re.sub(r"(?<=\d),(?=\d{3})", "", text))


def _grams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def question_texts(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The questions and rephrasings of a table's rows, as texts."""
    from branchwise.data.questions import QUESTIONS, question_text

    for row in rows:
        key = next((name for name in QUESTIONS if row.get(name)), None)
        if key:
            yield question_text(row[key])
        rephrasings = row.get("rephrasings")
        if isinstance(rephrasings, list):
            yield from (text for text in rephrasings if isinstance(text, str))
