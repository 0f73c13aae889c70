"""One spelling for what LaTeX, Unicode and plain text spell in many ways."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from branchwise.rewards.mathematics import words

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n"))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "±": r"\pm ", "∓": r"\mp ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "°": r"\degree ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "′": "'", "“": "", "”": "", "⁄": "/", "∕": "/",
    "∖": r"\setminus ",
} | {
    chr(code): "\\" + name + " "
    for code, name in zip(
        (*range(0x3B1, 0x3BA), *range(0x3BB, 0x3C0), 0x3C1, *range(0x3C3, 0x3CA), 0x3A9, 0x394),
        words(
            "alpha beta gamma delta epsilon zeta eta theta iota lambda mu nu xi omicron rho sigma tau upsilon phi chi "
            "psi omega Omega Delta"
        ),
    )
}  # fmt: skip
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202c\u2060\ufeff"
_UNICODE = str.maketrans(_SYMBOLS | dict.fromkeys(_INVISIBLE, ""))
_FONTS = (
    "text|textbf|textit|textrm|textnormal|textsf|textsc|mbox|mathrm|mathbf|mathit|mathsf|mathcal|operatorname|emph"
    "|ensuremath|boldsymbol|bm|pmb|underline"
)
_SINGLE_UNITS = {
    "m": "meters", "s": "seconds", "g": "grams", "L": "liters", "h": "hours", "N": "newtons", "J": "joules",
    "m^2": "meters^2", "m^3": "meters^3",
}  # fmt: skip

_ESCAPED = r"(?<!\\)"
_END = r"(?![A-Za-z])"
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|rm|bf|it|hline|tt|sf)" + _END, " "),
        (_ESCAPED + r"\\[hv]space\*?\{[^{}]*\}|\\h?phantom\s*(?:\{[^{}]*\}|[^\s\\{}])", " "),
        (r"\.{2,}|\\(?:[lch]?dots|dots[bc])" + _END, r"\\ldots "),
        (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        (r"``([^`']*)''", r"\1"),
        (r"\\pmod\s*(?:\{\s*(\w+)\s*\}|(\w))", r"(mod \1\2)"),
        (r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\[,;: ]|~)(?=\d{3}(?!\d))", ","),  # 10,\!000, 10{,}000, 10\,000
        (_ESCAPED + r"\\[!,;:]", ""),
        (_ESCAPED + r"\\ |~|\\(?:q?quad|enspace|thinspace|enskip|,)" + _END, " "),
        (r"\\(?:leq|leqslant)" + _END, r"\\le"),
        (r"\\(?:geq|geqslant)" + _END, r"\\ge"),
        (r"\\lt" + _END, "<"),
        (r"\\gt" + _END, ">"),
        (r"<=|=<", r"\\le "),
        (r">=|=>", r"\\ge "),
        (r"\\(?:neq|not\s*=)" + _END + r"|!=", r"\\ne "),
        (r"==", "="),
        (r"\\(?:varnothing|empty)" + _END + r"|\\\{\s*\\\}", r"\\emptyset"),
        (r"\\(?:lbrace)" + _END, r"\\{"),
        (r"\\(?:rbrace)" + _END, r"\\}"),
        (r"\\(?:[lr]?vert|mid)" + _END, "|"),
        (r"\\(?:simeq|doteq)" + _END, r"\\approx"),
        (r"\\(?:land|wedge)" + _END, " and "),
        (r"\\(?:lor|vee)" + _END, " or "),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree" + _END, r"\\degree "),
        (r"\\[dtcs]frac" + _END, r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}"),
        (r"\\frac\s*(\{(?:[^{}]|\{[^{}]*\})*\})\s*([0-9A-Za-z])", r"\\frac\1{\2}"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"(?<=\})\s+(?=\{)", ""),
        (r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}"),
        (r"√\s*", r"\\sqrt "),
        (r"\\sqrt\s*([0-9A-Za-z](?![0-9]))", r"\\sqrt{\1}"),
        (r"([_^])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"\\%|％| per ?cent\b(?! ?point)", "%"),
        (r"(?<=\d)\s*\\bar\s*(\d)", r"\\overline{\1}"),
        (r"\\bar\s*\{(\d+)\}", r"\\overline{\1}"),
        (r"(?<=\.)(\d*) ?\\dot ?\{?(\d)\}?(\d*)\\dot ?\{?(\d)\}?", r"\1\\overline{\2\3\4}"),
        (r"(?<=\.)(\d*) ?\\dot ?\{?(\d)\}?", r"\1\\overline{\2}"),
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        (r"(?<![A-Za-z\\])(?:[Ii]nfinity|inf|oo)" + _END, r"\\infty"),
        (r"\*\*(?=[^*]*\*\*)|\*\*$|`", ""),  # Markdown
        (r"(?<=[\d}]) *m ?/ ?s(?:ec)?\b", " meters/second"),
        (r"\s+", " "),
        (r"(?<=\d) to (?=\d)", ":"),
    )
]
_FONT = re.compile(rf"\\(?:{_FONTS})\s*\{{([^{{}}]*)\}}")
_ABOUT = re.compile(r"(?:\\approx *|(?:[Aa]pproximately|[Aa]bout) +)(?=[-\d\\])|= ?(?=-?\d)")
_CHOICE = re.compile(r"^\(([A-Z])\)$")


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """An answer in the one spelling that the rest of this package reads."""
    text = _vulgar(text).translate(_UNICODE)
    text = _scripts(text, _SUPERSCRIPTS, "^")
    text = _scripts(text, _SUBSCRIPTS, "_")
    text = _undelimited(unicodedata.normalize("NFKC", text))
    for _ in range(4):
        text, count = _FONT.subn(_without_font, text)
        if not count:
            break
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _unquoted(text.strip().rstrip(".,;:\\").strip())
    text = text[match.end() :] if (match := _ABOUT.match(text)) else text
    while text.startswith("{") and _closes_at_end(text):
        text = text[1:-1].strip().rstrip(".,;:")
    return _CHOICE.sub(r"\1", text)


def compact(text: str) -> str:
    """Without the spaces that mean nothing: those but between two digits or two letters."""
    return re.sub(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) |(?<=\d) (?=[A-Za-z])|(?<=[A-Za-z]) (?=\d)", "", text)


def _vulgar(text: str) -> str:
    """½ as \\frac{1}{2}."""
    if text.isascii():
        return text
    parts = (re.fullmatch(r"(\d+)\u2044(\d+)", unicodedata.normalize("NFKC", c)) for c in text)
    return "".join(rf"\frac{{{m[1]}}}{{{m[2]}}}" if m else c for c, m in zip(text, parts))


def _scripts(text: str, digits: dict[str, str], sign: str) -> str:
    if text.isascii():
        return text
    run = re.compile(f"[{''.join(digits)}]+")
    return run.sub(lambda m: f"{sign}{{{''.join(digits[c] for c in m[0])}}}", text)


def _undelimited(text: str) -> str:
    """Without the delimiters of mathematics; a dollar sign that is none of them becomes the word."""
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text) if not re.search(r"\\begin|\\\\\[", text) else text
    text = re.sub(r"(?<!\\)\\\$|\bUS\$|\bUSD\b", "§", text)
    if text.count("$") == 1 and re.search(r"\$\s*-?\.?\d", text):
        text = text.replace("$", "§")
    return text.replace("$", "").replace("§", "$")


def _without_font(match: re.Match[str]) -> str:
    content = match[1].replace("~", " ").strip()
    before = match.string[: match.start()].rstrip("~ \\,")[-1:]
    if content in _SINGLE_UNITS and (before.isdigit() or before in ("}", ")")):
        return f" {_SINGLE_UNITS[content]} "
    return f" {content} " if len(content) > 1 else content


def _unquoted(text: str) -> str:
    """Without the quotes around it; an apostrophe at its end alone is a prime, and means something."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip().rstrip(".,;:\\")
    return text.strip()


def _closes_at_end(text: str) -> bool:
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end() == len(text)
    return False
