"""Is a rephrasing fit to train on? Each check gives the reason against it, or None.

A rephrasing shares the original's reference answer, so precision comes first: what cannot be shown to say the same is
rejected, since a question can do with fewer rephrasings but not with wrong ones. Choices where usage differs: a number
that is new is rejected even where it might be harmless, and so is a number mentioned more often than in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from branchwise.data.images import PLACEHOLDER
from branchwise.rephrase import language
from branchwise.rephrase.conditions import changed_condition
from branchwise.rephrase.formulas import commands, missing_formulas, unbalanced, unpaired_dollar, variables
from branchwise.rephrase.options import changed_options
from branchwise.rephrase.quantities import Quantity, quantities
from branchwise.rephrase.units import missing_units, new_units, swapped_units

SHORTEST, LONGEST, SLACK = 0.4, 2.5, 120
"""Bounds on length: this share of the original's characters, and this multiple of them and so many more."""
TOLD = 300
"""Characters of a reason."""
LEAST_SHARED = 0.12
"""The least share of the original's content words (their beginnings) that a rephrasing keeps."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rephrasing with all that checks look at."""

    original: str
    text: str
    answer: Any = None
    """The reference answer; None where there is none."""
    others: Sequence[str] = ()
    """The question's rephrasings accepted before."""
    renames: bool = False
    """Whether its variables were to be renamed."""


def rejection(candidate: Candidate, skip: Iterable[str] = ()) -> str | None:
    """The first reason against a rephrasing, as `check: what is wrong`; None where it is fit.

    Args:
        candidate: the rephrasing and its question.
        skip: names of checks that are switched off.
    """
    skipped = set(skip)
    for name, check in CHECKS.items():
        if name not in skipped and (reason := check(candidate)):
            return f"{name}: {reason if len(reason) <= TOLD else reason[:TOLD] + '…'}"
    return None


def _empty(c: Candidate) -> str | None:
    return None if re.search(r"\w", c.text) else "there is no text"


def _control(c: Candidate) -> str | None:
    """Also signs that turn or hide text, unless the original has them."""
    if bad := re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]", c.text):
        return f"the control character {ord(bad[0]):#06x}, such as a badly escaped command leaves"
    if hidden := set(re.findall(r"[\u200b\u202a-\u202e\u2060-\u2069\ufeff]", c.text)) - set(c.original):
        return f"the invisible sign {ord(min(hidden)):#06x}"
    return None


def _images(c: Candidate) -> str | None:
    wanted, found = (text.count(PLACEHOLDER) for text in (c.original, c.text))
    return None if wanted == found else f"{found} places for images, not {wanted}"


def _same(c: Candidate) -> str | None:
    return "it is the original's text" if _bare(c.text) == _bare(c.original) else None


def _duplicate(c: Candidate) -> str | None:
    return "another rephrasing has this text" if _bare(c.text) in map(_bare, c.others) else None


def _bare(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+|[^\w\s.,;:!?'\"…–—‘’“”]", text.replace("**", "").casefold()))


_ABOUT = r"rephras|reword|rewrit|paraphras"
_LABELLED = (
    r"(?:(?:the|an?|new|another|alternative|updated|modified|final|possible|following|my|\w+ed)\s+){0,3}"
    r"(?:question|problem|version|variant|variation|wording|phrasing|output|result|response)\s*\d*\W{0,3}:"
)
_SCAFFOLD = {
    "a preface": rf"\A\W*(?:sure|certainly|of course|absolutely|okay|ok"
    rf"|here(?:'s| is| are)\b[^.?!:\n]{{0,60}}(?:{_ABOUT}|version|question|problem)"
    r"|(?:great|good|got it|no problem|understood|alright|yes|hmm+|well)(?: (?:question|idea|point))?\s*[!,.]"
    rf"|here (?:it is|you go|you are|we go|they are|goes)\b|{_LABELLED}"
    rf"|(?:the )?(?:{_ABOUT}|revis)\w*\b[^.?!\n]{{0,40}}:|(?:one|another) way to (?:re)?(?:phrase|word|ask|write))",
    "talk of the task": r"\b(?:rephras(?:e|ed|ing)|reword(?:ed|ing)?|rewritten (?:question|problem|version)"
    r"|paraphras\w*|original (?:question|problem|wording|text)|i hope this|let me know"
    r"|(?:same|without chang\w+) (?:the )?meaning)\b",
    "a refusal": r"\b(?:i(?:'m| am) (?:sorry|unable|not able)|i (?:can(?:no|')t|cannot|won't)|as an ai|i apologi[sz]e"
    r"|(?:can(?:no|')t|unable to) (?:assist|help|comply|fulfil)"
    r"|unfortunately,? (?:i|we)|i (?:do not|don't) have (?:enough|access)"
    r"|provide (?:me with )?(?:more|additional|further) (?:\w+ )?(?:details?|information|context))\b",
    "a thought": r"</?(?:think|thinking|thought|reasoning|analysis|scratchpad)>"
    r"|\A\W*(?:thought process|reasoning)\s*:|\bthe user (?:wants?|asks?|asked|needs?|is asking)\b"
    r"|\b(?:i|we) (?:need to|should|must|have to|will) (?:re)?(?:write|word|phrase|say|state|keep)\b",
    "scaffold": r"```|<\|[\w ]+\|>|\[/?INST\]|</?(?:question|rephras\w*|problem|answer|output)>"
    r"|\n\W*(?:notes?|changes|explanation|rationale)\b[^:\n]{0,30}:|\{\{?(?:question|text)\}\}?|\A\s*[{\[]\s*\"|\A\W*(?:user|assistant|system)\s*:"
    r"|\b(?:answer|solution)\s*:\W*\Z",
}


def _scaffold(c: Candidate) -> str | None:
    for name, pattern in _SCAFFOLD.items():
        found = re.search(pattern, c.text.replace("’", "'"), re.IGNORECASE)
        if found and found[0].casefold() not in c.original.replace("’", "'").casefold():
            return f"{name}: {' '.join(found[0].split())[:60]!r}"
    return None


_TELLS = re.compile(
    r"\b(?:the |final |correct |its |so the )*(?:answer|result|solution)\b[^.?!\n]{0,20}(?:\bis|\bequals|[:=])\s*(?=\S)"
    r"|\\boxed|\\fbox|####|^\W*(?:answer|solution|step 1|explanation|hint)\b\s*[:.]"
    r"|\b(?:therefore|hence|thus|so),? (?:the|we|he|she|it|they|there)\b[^.?!]{0,300}(?:\bis\b|\bare\b|=)"
    r"|\bto solve this\b|\blet(?:'s| us) (?:solve|think|calculate|compute|find|start|first)",
    re.IGNORECASE | re.MULTILINE,
)


def _answer(c: Candidate) -> str | None:
    """The reference answer, or the beginnings of a solution, newly present."""
    if len(_TELLS.findall(c.text)) > len(_TELLS.findall(c.original)):
        found = [m[0] for m in _TELLS.finditer(c.text)][-1]
        return f"it tells an answer or a solution: {' '.join(found.split())!r}"
    if c.answer is None or not (answer := str(c.answer).strip()):
        return None
    wanted = quantities(answer)
    if len(wanted) == 1 and re.fullmatch(r"[^A-Za-z]*|\\?[dt]?frac[\s{}\d]*|\\\$?[\d.,]+", answer):
        before, after = (sum(_is(q, wanted[0]) for q in quantities(text)) for text in (c.original, c.text))
        return f"the reference answer, {answer}, is newly there" if after > before else None
    if len(answer) < 3 and answer.isalpha():
        return None  # a letter or `no` proves nothing
    words = [set(re.findall(r"[^\W\d_]{3,}", text.casefold())) for text in (answer, c.original, c.text)]
    if len(words[0]) > 1 and words[0] <= words[2] and not words[0] <= words[1]:
        return f"the words of the reference answer, {answer}, are newly there"
    before, after = (_spaceless(text).count(_spaceless(answer)) for text in (c.original, c.text))
    return f"the reference answer, {answer}, is newly there" if after > before else None


def _is(quantity: Quantity, wanted: Quantity) -> bool:
    return not quantity.loose and quantity.readings[0] == wanted.readings[0]


def _spaceless(text: str) -> str:
    return re.sub(r"[\s$]|\\(?:left|right)(?![a-z])|\\text\b|[{}]", "", text).casefold()


def _numbers(c: Candidate) -> str | None:
    missing, new = compare(quantities(c.original), quantities(c.text))
    lost = f"{', '.join(missing)} of the original is not there" if missing else ""
    came = f"{', '.join(new)} is new or there more often" if new else ""
    return "; ".join(filter(None, (lost, came))) or None


def compare(original: list[Quantity], rephrasing: list[Quantity]) -> tuple[list[str], list[str]]:
    """The numbers missing from a rephrasing, and those that it adds; loose ones may come and go."""
    left = sorted(rephrasing, key=lambda q: q.loose)
    missing = []
    for wanted in sorted(original, key=lambda q: (q.loose, len(q.readings))):
        agreeing = [q for q in left if wanted.agrees(q) and (wanted.loose or not q.place)]
        if agreeing:
            left.remove(min(agreeing, key=lambda q: (q.loose, q.readings[0] != wanted.readings[0])))
        elif not wanted.loose:
            missing.append(wanted.text)
    return missing, [q.text for q in left if not q.loose]


def _variables(c: Candidate) -> str | None:
    before, after = variables(c.original), variables(c.text)
    if c.renames:
        same = len(before) == len(after)
        return None if same else f"{len(before)} variables became {len(after)}"
    if lost := sorted(before - after):
        return f"{', '.join(lost)} of the original is not there"
    new = sorted(after - before)
    return f"{', '.join(new)} is new" if new else None


def _units(c: Candidate) -> str | None:
    if missing := missing_units(c.original, c.text):
        return f"{', '.join(missing)} of the original is not there"
    if new := new_units(c.original, c.text):
        return f"{', '.join(new)} is new"
    return swapped_units(c.original, c.text)


def _latex(c: Candidate) -> str | None:
    if (delimiter := unbalanced(c.text)) and not unbalanced(c.original):
        return f"{delimiter} does not come in pairs"
    if unpaired_dollar(c.text) and not unpaired_dollar(c.original):
        return "$ does not come in pairs"
    before, after = commands(c.original), commands(c.text)
    if lost := sorted((before - after).keys()):
        return f"\\{lost[0]} of the original is not there"
    if new := sorted(set(after) - set(before)):
        return f"\\{new[0]} is new"
    if not c.renames and (missing := missing_formulas(c.original, c.text)):
        return f"the formula {missing[0]!r} is not there"
    return None


def _language(c: Candidate) -> str | None:
    before, after = language.language(c.original), language.language(c.text)
    return None if before == after or None in (before, after) else f"{before} became {after}"


_FORMS = {
    "rounding": r"\bround\w*|\bnearest\b|\bapproximat\w*|\bdecimal place|\bsignificant (?:digit|figure)",
    "a fraction": r"\b(?:common|mixed|improper|simplified|reduced) (?:fraction|number)|\bfraction\b",
    "a decimal": r"\bdecimal\b",
    "a percentage": r"\b(?:what|as an?|the) percent",
    "lowest terms": r"\b(?:simplest|lowest|reduced|simplified)\b[^.]{0,12}\b(?:form|terms)|relatively prime|coprime",
    "radical form": r"\bradical form",
    "in terms of": r"\bin terms of\b|\bas a function of\b",
    "interval notation": r"\binterval notation",
    "scientific notation": r"\bscientific notation",
    "degrees": r"\bin degrees\b", "radians": r"\bin radians\b",
    "a list": r"\bseparated by commas?|\bcomma[- ]separated|\blist (?:all|the)\b",
    "an ordered pair": r"\bordered (?:pair|triple)",
    "a base": r"\b(?:in )?base[- _]?(?:\d+|ten|two|eight)\b|\bbinary\b",
    "a remainder": r"\bremainder (?:when|of|is|if)\b(?! \w+ (?:are|is|were))|\bmodulo\b|\bmod\b",
    "least": r"\b(?:least|smallest|minimum|minimal|lowest|fewest)\b",
    "greatest": r"\b(?:greatest|largest|maximum|maximal|highest|most)\b",
}  # fmt: skip
_NOT_MEANT = {
    "rounding": r"\bapproximat\w*|\bround (?:trip|table)|\bnearest\b(?! (?:whole|int|ten|hun|thou|cent|dollar))",
    "least": r"\bat least\b",
    "greatest": r"\bat most\b|\bmost\b",
}
"""Words that look like a form's and ask for none."""
_VERBS = (
    "find|determine|calculate|compute|evaluate|give|express|simplify|solve|prove|show|name|list|factor|write|expand|"
    "estimate|state|work out|figure out|add|subtract|multiply|divide|convert|graph|identify|count|tell|explain|round|"
    "choose|select|complete|fill|what"
)
_ASKS = re.compile(rf"\?|(?:\A|[.!:;,\n$\])]|\b(?:and|then|please|to|of|on|-))\W*(?:{_VERBS})\b", re.IGNORECASE)


def _form(c: Candidate) -> str | None:
    """The form of the answer asked for, the options to choose from, and that it asks at all."""
    if not _ASKS.search(c.text) and _ASKS.search(c.original):
        return "it asks nothing"
    if changed := changed_options(c.original, c.text):
        return changed
    for name, pattern in _FORMS.items():
        here, there = (_form_words(name, pattern, text) for text in (c.original, c.text))
        if here and not there:
            return f"{name}, which the original asks for, is not there"
    return None


def _form_words(name: str, pattern: str, text: str) -> bool:
    if name in _NOT_MEANT:
        text = re.sub(_NOT_MEANT[name], " ", text, flags=re.IGNORECASE)
    return re.search(pattern, text, re.IGNORECASE) is not None


def _conditions(c: Candidate) -> str | None:
    return changed_condition(c.original, c.text)


def _length(c: Candidate) -> str | None:
    before, after = len(c.original.strip()), len(c.text.strip())
    if SHORTEST * before <= after <= LONGEST * before + SLACK:
        return None
    return f"{after} characters for {before}"


def _topic(c: Candidate) -> str | None:
    """Another question's text shares few words with this one's."""
    before, after = language.stems(c.original), language.stems(c.text)
    if len(before) < 5:
        return None
    shared = len(before & after) / len(before)
    return None if shared >= LEAST_SHARED else f"only {shared:.0%} of the original's words are in it"


CHECKS: dict[str, Callable[[Candidate], str | None]] = {
    "empty": _empty,
    "control": _control,
    "images": _images,
    "scaffold": _scaffold,
    "same": _same,
    "duplicate": _duplicate,
    "answer": _answer,
    "numbers": _numbers,
    "variables": _variables,
    "latex": _latex,
    "units": _units,
    "language": _language,
    "form": _form,
    "length": _length,
    "topic": _topic,
    "conditions": _conditions,
}
"""Every check by its name, in the order in which they look."""
