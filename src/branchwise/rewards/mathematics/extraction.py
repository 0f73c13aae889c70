"""Finding the final answer in a text."""

from __future__ import annotations

import re
from typing import Any

from branchwise.rewards.mathematics.formula import read_formula
from branchwise.rewards.mathematics.notation import normalise
from branchwise.rewards.mathematics.quantity import read_quantity
from branchwise.rewards.mathematics.relations import read_chain
from branchwise.rewards.mathematics.structure import read_matrix, read_parts

_LONGEST_LINE = 200
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*(?:(?P<brace>\{)|(?P<bare>\d+|[A-Za-z](?![A-Za-z])))?")
_SAID = re.compile(
    r"\banswer(?:\s+(?:is|are|equals|=|:|would be|will be|must be|should be)(?![A-Za-z])|\s*\**\s*[:=])"
    r"|答案(?:是|为|：|:)|^[^\w\n]*(?:the )?(?:final |correct )?answer[^\w\n]*\n",
    re.IGNORECASE | re.MULTILINE,
)
_NEGATION = r"(?:\b(?:not|never|cannot|no longer|neither|nor|doubt|wrong|incorrect|whether)\b|n['’]t\b)"
_UNSAID = re.compile(rf"\banswer\b[^.\n]{{0,20}}{_NEGATION}", re.IGNORECASE)
_DENIED_BEFORE = re.compile(
    rf"(?:{_NEGATION}|\b(?:except|excludes?|excluding|rules? out|ruled out|than)\b)[^.,;:!?\n]{{0,40}}$"
    r"|\b(?:at (?:least|most)|minus|negative|(?:half|twice|double|triple)(?: of)?|up to|until|step|equation) *$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    rf"\W*\b(?:is|was|are|seems|can|would be|does)\b ?{_NEGATION}|\W*(?:isn|can|doesn)['’]t\b", re.I
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|。")
_REMARK = re.compile(r"[,;]? \(?(?:because|since|as|which|so that|where)\b|,?(?: and)? not |,? but ")
_TAKEN_BACK = re.compile(
    r"(?:[.!?,;]\s+|\n)\W*(?:but )?"
    r"(?:no[,.!:]|(?:wait|actually|sorry|correction|oops)\b|scratch that|on second thought)",
    re.IGNORECASE,
)
"""What changes an answer that was given before."""
_ADVERB = re.compile(r"(?:therefore|thus|then|clearly|simply|exactly|just|equal to|given by)[, ]+")
_VALUE = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_LAST = re.compile(
    rf"-?(?:\d+\s*)?\\[dt]?frac\{{[^{{}}]*\}}\{{[^{{}}]*\}}|-?\d+ \d+/\d+(?![\d/])"
    rf"|-?(?:{_VALUE})(?:\s*/\s*(?:{_VALUE}))?(?:\s?\\?%)?"
)
_ENTANGLED_BEFORE = re.compile(
    r"[\w\\^_{.(,\[]$|[\w)}\]]\s*[-+*/^×÷]\s*$|[*/^×÷<>≤≥±√]\s*$|\\[A-Za-z]+\s*$|[(\[][^()\[\]]{0,80},\s*$|\d,\s+$|\d\s+(?:to|and|or)\s+$"
)
_ENTANGLED_AFTER = re.compile(
    r"[\w}^_!\])\\]|,\d|\s*[-+*/^×÷=<>≤≥±]\s*[\w\\(]|\s*(?:million|billion|thousand|hundred|dozen|or|and|to|squared)\b"
)
_MATH = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def final_answer(text: str, require_box: bool = False) -> str | None:
    """The final answer that a text gives; None where it gives none.

    It is the last `\\boxed{}`; without one, what an `<answer>` tag holds, what follows the last `####` or `answer is`,
    or the whole text where that is mathematics alone; without these, the formula or number that the last sentence ends
    in, if it stands alone.
    """
    if _BOX.search(text):
        return last_box(text)
    if require_box:
        return None
    if (tagged := last_tagged(text)) is not None:
        return tagged
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0]
    if said := [match for match in _SAID.finditer(text) if not _is_denied(text, match.start())]:
        rest = text[said[-1].end() :].lstrip(" \n:=*_")  # so that `Answer:\n\nNo.` takes nothing back
        taken_back = _TAKEN_BACK.search(rest)
        return _last_number(rest[taken_back.end() :]) if taken_back else _said(rest)
    if _SAID.search(text) or _UNSAID.search(text):
        return None
    line = text.strip()
    if "\n" not in line and len(line) <= _LONGEST_LINE and _is_mathematics(line):
        return line
    return _last_formula(text) or _last_number(text)


def last_box(text: str) -> str | None:
    """What the last `\\boxed{}` holds; None where there is none, or where it is cut short or empty."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    if boxes[-1]["bare"]:
        return boxes[-1]["bare"]
    if not boxes[-1]["brace"]:
        return None
    start, depth = boxes[-1].end(), 1
    for brace in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : start + brace.start()].strip() or None
    return None


def last_tagged(text: str) -> str | None:
    """What the last `<answer>…</answer>` holds; None where there is none."""
    before, closing, _ = text.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    return answer.strip() if closing and opening else None


def reference_text(reference: Any) -> str:
    """A reference as the text of its final answer: a number, a text, a worked solution, or a list of values."""
    if isinstance(reference, list | tuple):
        return ", ".join(map(reference_text, reference))
    text = "" if reference is None or reference != reference else str(reference)
    return last_box(text) or text.rpartition("####")[2].strip()


def _said(rest: str) -> str:
    """The value at the beginning of a text, without what is remarked on it."""
    rest = _ADVERB.sub("", rest[:1000].lstrip(" \n:=*_"))
    sentence = _SENTENCE_END.split(rest)[0].rstrip(" *_!")
    return _REMARK.split(sentence)[0].rstrip(" *_,;")


def _is_mathematics(text: str) -> bool:
    """Whether a text reads as an answer and holds no prose."""
    answer = normalise(text)
    if re.search(r"[A-Za-z]{3}|^[Nn]o$", re.sub(r"\\[A-Za-z]+", " ", answer)):
        return bool(re.fullmatch(r"[A-Za-z-]+", answer)) or read_quantity(answer) is not None
    chain = read_chain(answer)
    if chain:
        return all(read_formula(side) for side in chain.sides)
    return any(read(answer) for read in (read_quantity, read_parts, read_matrix))


def _last_formula(text: str) -> str | None:
    """Mathematics between delimiters that ends the text."""
    text = text[-1000:]
    found = list(_MATH.finditer(text))
    if not found or text[found[-1].end() :].strip(" \n.!*") or _is_denied(text, found[-1].start()):
        return None
    return next(filter(None, found[-1].groups()), "").strip().rstrip(".") or None


def _last_number(text: str) -> str | None:
    """The last number, unless it is part of an expression or a name: half of `3 + 4` or of `\\sqrt{2}` is no answer."""
    text = text[-2000:]
    numbers = list(_LAST.finditer(text))
    if not numbers:
        return None
    before, after = text[: numbers[-1].start()], text[numbers[-1].end() :]
    entangled = _ENTANGLED_BEFORE.search(before[-100:]) or _ENTANGLED_AFTER.match(after)
    denied = _is_denied(text, len(before)) or _DENIED_AFTER.match(after)
    return None if entangled or denied else numbers[-1][0]


def _is_denied(text: str, place: int) -> bool:
    """Whether the words before a place deny what stands there, or say of it that it is more, less or another thing."""
    return bool(_DENIED_BEFORE.search(text[max(0, place - 100) : place]))
