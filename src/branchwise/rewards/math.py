"""The built-in reward for mathematics: 1 for the right final answer, 0 for any other."""

from __future__ import annotations

import re
from typing import Any

from branchwise.rewards.equality import equal

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SAID = re.compile(r"answer(?:\s+is\b|\s*[:=])", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n")
_VALUE = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_LAST = re.compile(rf"-?\\[dt]?frac\{{[^{{}}]*\}}\{{[^{{}}]*\}}|-?(?:{_VALUE})(?:\s*/\s*(?:{_VALUE}))?(?:\\?%)?")

_ENTANGLED_BEFORE = re.compile(r"[\w\\^_{.]$|[\w)}\]]\s*[-+*/^×÷]\s*$|\\(?:times|cdot|div)\s*$")
_ENTANGLED_AFTER = re.compile(r"[\w}^_!]|\s*[-+*/^×÷=]\s*\S")


def math(answers: list[str], answer: list[Any], require_box: bool = False, **_: Any) -> list[float]:
    """1 where the final answer of the text after the marker equals the reference, else 0.

    The final answer is the last `\\boxed{}`; without one, what follows the last `####` or `answer is`; without these,
    the last number, if it stands alone. `branchwise.rewards.equality` says what equals what.

    Args:
        answers: texts after the marker, '' for unclosed thoughts.
        answer: reference answers; numbers, or texts in LaTeX or plain notation.
        require_box: only a `\\boxed{}` counts.
    """
    found = [final_answer(text, require_box) for text in answers]
    return [float(given is not None and equal(_gold(gold), given)) for given, gold in zip(found, answer)]


def final_answer(text: str, require_box: bool = False) -> str | None:
    """The final answer that a text gives; None where it gives none."""
    if _BOX.search(text):
        return last_box(text)
    if require_box:
        return None
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0]
    if said := list(_SAID.finditer(text)):
        rest = text[said[-1].end() :].lstrip(" \n:=*_")
        return _SENTENCE_END.split(rest)[0].rstrip(" *_")
    return _last_number(text)


def last_box(text: str) -> str | None:
    """What the last `\\boxed{}` holds; None where there is none, or where it is cut short."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : start + brace.start()].strip()
    return None


def _last_number(text: str) -> str | None:
    """The last number, unless it is part of an expression or a name: half of `3 + 4` or of `\\sqrt{2}` is no answer."""
    numbers = list(_LAST.finditer(text))
    if not numbers:
        return None
    before, after = text[: numbers[-1].start()], text[numbers[-1].end() :]
    entangled = _ENTANGLED_BEFORE.search(before) or _ENTANGLED_AFTER.match(after)
    return None if entangled else numbers[-1][0]


def _gold(reference: Any) -> str:
    text = str(reference)
    return last_box(text) or text.rpartition("####")[2].strip()
