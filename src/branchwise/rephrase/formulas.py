"""The mathematics written in a question: formulas, commands, variables."""

from __future__ import annotations

import re
from collections import Counter

_MATH = re.compile(
    r"\$\$(?P<display>.+?)\$\$|(?<!\\)\$(?P<inline>(?! )(?:[^$\\]|\\.)+?)(?<![\\ ])\$(?!\d)"
    r"|\\\[(?P<square>.+?)\\\]|\\\((?P<round>.+?)\\\)"
    r"|\\begin\{(?P<kind>equation|align|gather|eqnarray)\*?\}(?P<block>.+?)\\end\{(?P=kind)\*?\}",
    re.DOTALL,
)
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textbf|textit|mathbf|operatorname)\s*\{[^{}]*\}")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|bigl|bigr|big|Big|bigg|Bigg|[,;:! ])(?![A-Za-z])|~"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_LETTER = re.compile(r"(?<![A-Za-z\\'’])[A-Za-z](?![A-Za-z'’])")
_LABEL = re.compile(r"\([A-J]\)|^\s*[A-J][.):]\s", re.MULTILINE)
"""Of an option to choose from."""
_UNIT_LETTER = re.compile(r"(?<=[A-Za-z])/[a-z]\b|(?<=\d)\s?(?:°\s?[CFK]|[ghLlCFVW])\b|°\s?[CFK]\b")
"""Of a unit, as in km/h, 5 g or 20 °C."""
_PROSE_LETTERS = frozenset("aAIsStTdm")
"""Single letters that English itself uses, alone or after an apostrophe."""
_MADE_BY_LAYOUT = frozenset({
    "left", "right", "displaystyle", "quad", "qquad", "text", "mbox", "textbf", "textit", "mathrm", "begin", "end",
    "item",
})  # fmt: skip


def formulas(text: str) -> list[str]:
    """What stands between `$…$`, `\\(…\\)`, `\\[…\\]` and in display environments, as written."""
    found = []
    for match in _MATH.finditer(_without_prices(text)):
        formula = next(g for g in match.group("display", "inline", "square", "round", "block") if g)
        if match["inline"] is None or not re.search(r"[A-Za-z]{4}", _COMMAND.sub(" ", _TEXT.sub(" ", formula))):
            found.append(formula)
    return found


def _without_prices(text: str) -> str:
    """`\\$5` and `$\\$$5` are money, and part no formulas."""
    return text.replace("$\\$$", "").replace("\\$", "")


def without_delimiters(text: str) -> str:
    """Formulas without the signs around them, so that every `$` left is money."""
    written = set(formulas(text))

    def bare(match: re.Match[str]) -> str:
        formula = next(g for g in match.group("display", "inline", "square", "round", "block") if g)
        return f" {formula} " if formula in written else match[0]

    return _MATH.sub(bare, text)


def normal(formula: str) -> str:
    """A formula without what only its layout needs: blanks, \\left, \\dfrac for \\frac, braces of one sign."""
    formula = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", _LAYOUT.sub("", formula))
    formula = re.sub(r"\\(?:text|mbox|mathrm)\s*\{([^{}]*)\}", r"\1", formula)
    formula = formula.replace("\\$", "").replace("$", "").replace("{,}", ",")
    formula = re.sub(r"\{(\w)\}", r"\1", re.sub(r"\s+", "", formula))
    return re.sub(r"\\(?:le|ge|ne)q(?![A-Za-z])", lambda m: m[0][:-1], formula)


def missing_formulas(original: str, rephrasing: str) -> list[str]:
    """Formulas of the original whose text is nowhere in the rephrasing; an enumeration's members count one by one."""
    there = normal(rephrasing)
    parts = [part.strip() for formula in formulas(original) for part in _members(formula)]
    return [part for part in parts if normal(part).rstrip(".;:\\") not in there]


def _members(formula: str) -> list[str]:
    """`a = 1, b = 2` as two; commas inside brackets part nothing."""
    members, depth, start = [], 0, 0
    for i, sign in enumerate(formula):
        depth += (sign in "{([") - (sign in "})]")
        if sign == "," and depth == 0:
            members.append(formula[start:i])
            start = i + 1
    return [m for m in [*members, formula[start:]] if m.strip()]


def commands(text: str) -> Counter[str]:
    """LaTeX commands that mean something, by name and how often."""
    names = (re.sub(r"^[dt]frac$", "frac", m[1]) for m in _COMMAND.finditer(text))
    names = (re.sub(r"^(le|ge|ne)q$", r"\1", name) for name in names)
    return Counter(name for name in names if name not in _MADE_BY_LAYOUT)


def variables(text: str) -> set[str]:
    """Letters that stand alone, in formulas or in prose (there without a, A and I, which are words)."""
    inside = [_COMMAND.sub(" ", _TEXT.sub(" ", formula)) for formula in formulas(text)]
    letters = {c for formula in inside for run in re.findall(r"[A-Za-z]+", formula) for c in run if len(run) < 4}
    prose = _LABEL.sub(" ", _COMMAND.sub(" ", _MATH.sub(" ", _without_prices(text))))
    return letters | (set(_LETTER.findall(_UNIT_LETTER.sub(" ", prose))) - _PROSE_LETTERS)


def unbalanced(text: str) -> str | None:
    """The delimiter of mathematics that does not come in pairs."""
    bare = re.sub(r"\\\\|\\[${}]", "", text)
    if bare.count("{") != bare.count("}"):
        return "{ }"
    if bare.count("\\left") - bare.count("\\leftarrow") - bare.count("\\leftrightarrow") != bare.count(
        "\\right"
    ) - bare.count("\\rightarrow"):
        return "\\left \\right"
    for opening, closing in (("\\[", "\\]"), ("\\(", "\\)")):
        if bare.count(opening) != bare.count(closing):
            return f"{opening} {closing}"
    return None


def unpaired_dollar(text: str) -> bool:
    """Whether a `$` stands outside formulas and before no amount, in digits or in words."""
    return re.search(r"\$(?!\s?\.?\d|\s?[A-Za-z]{3})", without_delimiters(_without_prices(text))) is not None
