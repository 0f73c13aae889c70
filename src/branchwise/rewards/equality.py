"""When two mathematical answers are equal: exactly as numbers, part by part, as text, and last as formulas.

Precision comes before recall: what cannot be shown equal is unequal, and numbers are never compared by nearness.
Choices where usage differs:

- Percent: 35% is 0.35. A reference of 35% also takes a bare 35, and a bare reference of 35 also takes 35%; one below 1
  does not.
- Units: a number may come with or without its unit, but not with another one.
- A bare 1011 answers 1011_2; any other base, or a base where the reference has none, is wrong.
- `x = 5` answers 5, and 5 answers `x = 5`; `y = 5` does not answer `x = 5`.
- Letters of either case are different, stand for real numbers, and i is the imaginary unit.
- Order counts in (1, 2) and [1, 2], and not in {1, 2} or 1, 2, which are equal.
"""

from __future__ import annotations

import logging
import random
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

_LONGEST = 500
"""Characters; longer answers are compared as text alone."""


@lru_cache(maxsize=4096)
def equal(gold: str, given: str) -> bool:
    """Whether an answer equals the reference."""
    try:
        return _equal(normalise(gold), normalise(given))
    except (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError):
        return False  # sympy, on formulas that it can read but not compare


def _equal(gold: str, given: str) -> bool:
    if not gold or not given:
        return False
    if _same_text(gold, given):
        return True
    if max(len(gold), len(given)) > _LONGEST:
        return False
    if _BASE.search(gold) or _BASE.search(given):
        return _digits(gold) == given.replace(" ", "")
    a, b = read_number(gold), read_number(given)
    if a and b:
        return a.equals(b)
    A, B = (None if a else _members(gold)), (None if b else _members(given))
    if A and B:
        return _same_members(A, B)
    if "=" in gold or "=" in given:
        return _same_equation(gold, given)
    return not ((a and B) or (A and b)) and _same_formula(gold, given)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- text


_REWRITES = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"[−–]", "-"),
        (r"π", r"\\pi "),
        (r"∞", r"\\infty "),
        (r"√", r"\\sqrt "),
        (r"×", r"\\times "),
        (r"≤", r"\\le "),
        (r"≥", r"\\ge "),
        (r"∪", r"\\cup "),
        (r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le"),
        (r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge"),
        (r"\\(?:left|right)(?![A-Za-z])", ""),
        (r"(?<!\\)\\[!,;:]|\{,\}(?=\d{3})", lambda m: "," if m[0] == "{,}" else ""),
        (r"(?<!\\)\\ |~|\\q?quad(?![A-Za-z])|\s+", " "),
        (r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree(?![A-Za-z])", ""),
        (r"\\%| percent\b", "%"),
        (r"\\?[$]|[€£¥]|(?<!\\)\\[()\[\]]|\*\*|`", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}"),
        (r"\\frac\s*(\{[^{}]*\})\s*([0-9A-Za-z])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"([_^])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"\s+", " "),
    )
]


def normalise(text: str) -> str:
    """One spelling for what LaTeX spells in many ways: fractions, spaces, brackets, text, currency, degrees."""
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".,;:").strip()
    return re.sub(r"^\(([A-Z])\)$", r"\1", text)


def _same_text(a: str, b: str) -> bool:
    a, b = a.replace(" ", ""), b.replace(" ", "")
    return a == b or (len(a) > 1 and a.isalpha() and a.casefold() == b.casefold())


_BASE = re.compile(r"[0-9A-F]*\d[0-9A-F]* ?_ ?\{?\d")


def _digits(text: str) -> str:
    """A number in a base, without the base."""
    return re.sub(r"_\{?\d+\}?$", "", text.replace(" ", ""))


# --- numbers


_N = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_FORMS = [
    re.compile(rf"(?P<sign>[-+]?) ?{form} ?(?P<percent>%?) ?(?P<unit>[A-Za-z][A-Za-z ./-]*(?:\^\d)?)?")
    for form in (
        rf"(?P<whole>\d+)? ?\\frac\{{ ?(?P<top>-?(?:{_N})) ?\}}\{{ ?(?P<bottom>-?(?:{_N})) ?\}}",
        r"(?P<whole>\d+) (?P<top>\d+) ?/ ?(?P<bottom>\d+)",
        rf"(?P<top>{_N}) ?/ ?(?P<bottom>{_N})",
        rf"(?P<top>{_N}) ?(?:(?:\\times|\\cdot|\*) ?10\^\{{?|[eE])(?P<exponent>[-+]?\d{{1,3}})\}}?",
        rf"(?P<top>{_N})",
    )
]
_SCALES = _words(
    """
    pi e i or and to of sqrt dozen hundred thousand million billion trillion half halves third thirds quarter
    quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth
    tenths hundredths thousandths squared cubed plus minus times over more less mod
    """
)
"""Words that change a number, and so are no units."""
_UNITS = _words(
    """
    mm cm km in ft yd mi mg kg lb lbs oz sec min hr hrs mph am pm ml inch inches foot feet yard yards mile
    miles meter meters metre metres unit units sq square cubic degree degrees radians dollars cents hours days
    weeks years
    """
)


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    percent: bool
    unit: str

    def equals(self, other: Number) -> bool:
        """Whether this reference equals that answer."""
        return self._same_value(other) and self._same_unit(other)

    def _same_value(self, other: Number) -> bool:
        if self.percent == other.percent:
            return self.value == other.value
        if self.percent:
            return other.value in (self.value, self.value / 100)
        return self.value == other.value / 100 or (self.value >= 1 and self.value == other.value)

    def _same_unit(self, other: Number) -> bool:
        if self.unit and other.unit:
            return self.unit.rstrip("s") == other.unit.rstrip("s")
        # abc may be a product of variables: only a reference's plain words are units
        words = (self.unit or other.unit).partition("^")[0].split()
        shortest = 5 if self.unit else 3
        return all(word in _UNITS or (len(word) >= shortest and re.search("[aeiou]", word)) for word in words)


def read_number(text: str) -> Number | None:
    """An integer, decimal, fraction or mixed number with its percent sign and unit, exactly; None for all else."""
    for form in _FORMS:
        if match := form.fullmatch(text):
            parts = match.groupdict()
            unit = (parts["unit"] or "").strip()
            unit = unit.lower() if len(unit) > 3 else unit  # shorter ones may be variables
            if any(word in _SCALES for word in re.split(r"[ ./-]", unit)):
                return None
            bottom = _exact(parts.get("bottom") or "1")
            if bottom == 0:
                return None
            value = _exact(parts.get("whole") or "0") + _exact(parts["top"]) / bottom
            value *= Fraction(10) ** int(parts.get("exponent") or 0)
            return Number(-value if parts["sign"] == "-" else value, bool(parts["percent"]), unit)
    return None


def _exact(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


# --- tuples, intervals, sets and lists


@dataclass(frozen=True, slots=True)
class Members:
    brackets: str
    """'()', '[)' and so on; '' for sets and bare lists, whose order does not count."""
    parts: tuple[str, ...]


_MATRIX = re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}")


def _members(text: str) -> Members | None:
    """The parts of a matrix, a set, or a tuple, interval or bare list of two or more."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in matrix[1].split("\\\\")]
        cells = tuple(cell.strip() for row in rows for cell in row)
        return Members(f"matrix of rows {[len(row) for row in rows]}", cells)
    opening = next((o for o in ("(", "[", "\\{") if text.startswith(o)), "")
    if opening and not _enclosed(text):
        opening = ""
    closing = text[len(text) - len(opening) :] if opening else ""
    parts = _split(text[len(opening) : len(text) - len(closing)])
    if opening == "\\{":
        return Members("", parts)
    return Members(opening + closing, parts) if len(parts) > 1 else None


def _enclosed(text: str) -> bool:
    """Whether the bracket that opens a text closes at its end."""
    depth = 0
    for match in re.finditer(r"\\?[{(\[\])}]", text):
        depth += 1 if match[0][-1] in "{([" else -1
        if depth == 0:
            return match.end() == len(text)
    return False


def _split(text: str) -> tuple[str, ...]:
    """At the commas (and words for them) outside all brackets."""
    parts, start, depth = [], 0, 0
    for match in re.finditer(r"\\?[{(\[]|\\?[\])}]|, ?(?:and|or)? |,| (?:and|or) ", text):
        if match[0][-1] in "{([":
            depth += 1
        elif match[0][-1] in "})]":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return (*parts, text[start:].strip())


def _same_members(gold: Members, given: Members) -> bool:
    if gold.brackets != given.brackets or len(gold.parts) != len(given.parts):
        return False
    if gold.brackets:
        return all(_equal(a, b) for a, b in zip(gold.parts, given.parts))
    left = list(given.parts)
    for part in gold.parts:
        match = next((i for i, other in enumerate(left) if _equal(part, other)), None)
        if match is None:
            return False
        del left[match]
    return True


# --- equations


_NAMED = re.compile(r"([A-Za-z]\w{0,9}(?:\([a-z]\))?) ?= ?([^=<>]+)")


def _same_equation(gold: str, given: str) -> bool:
    """`x = 5` and 5 are equal; of two equations one must be a multiple of the other."""
    (gold_name, gold_value), (given_name, given_value) = _named(gold), _named(given)
    if gold_name == given_name or not ("=" in gold and "=" in given):
        return "=" not in gold_value + given_value and _equal(gold_value, given_value)
    if not (gold.count("=") == given.count("=") == 1):
        return False
    a, b = (_formula("({})-({})".format(*text.split("="))) for text in (gold, given))
    values = _values(a, b)
    x, y = values[0] if len(values) > 1 else (0, 0)
    return x * y != 0 and all(_near(x * w, y * v) for v, w in values[1:])


def _named(text: str) -> tuple[str, str]:
    """`x = 5` as ('x', '5'), and 5 as ('', '5')."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


# --- formulas


_COMMANDS = _words(
    """
    frac sqrt pi cdot times div pm sin cos tan cot sec csc arcsin arccos arctan log ln infty cup cap in le ge
    lt gt ne neq theta alpha beta gamma delta lambda mu omega phi rho sigma tau setminus emptyset mathbb
    """
)


def _same_formula(gold: str, given: str) -> bool:
    """Equality as functions of their letters; of sets and relations by math-verify."""
    a, b = _formula(gold), _formula(given)
    if a is None or b is None:
        return False
    if values := _values(a, b):
        return all(_near(x, y) for x, y in values)
    if _is_formula(a) or _is_formula(b) or len(gold) + len(given) > 100:
        return False
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of missing timeouts, but these are signals,
    return bool(verify(a, b, float_rounding=15, timeout_seconds=None))  # which only a main thread may set


def _is_formula(parsed: Any) -> bool:
    """Whether it has a value, unlike sets and relations."""
    from sympy import Expr

    return isinstance(parsed, Expr)


def _values(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Two formulas' values at six random points (constants': at one), to 40 digits; formulas that differ, differ there.

    Empty for sets and relations.
    """
    if not (_is_formula(a) and _is_formula(b)):
        return []
    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    draw = random.Random(0)
    points = [{letter: Fraction(draw.randint(-999, 999), 128) for letter in letters} for _ in range(6)]
    return [(a.evalf(40, subs=point), b.evalf(40, subs=point)) for point in (points if letters else [{}])]


def _near(x: Any, y: Any) -> bool:
    if not (x.is_finite and y.is_finite):
        return False
    return bool(abs(x - y) <= max(abs(x), abs(y)) * Fraction(1, 10**30))


def _tame(text: str) -> bool:
    """Known commands, no words, and no powers, factorials or digits that could take for ever."""
    text = re.sub(r"\\(?:begin|end)\{[pbv]matrix\}|\\\\|\\[{}]", " ", text)
    if len(text) > 200 or sum(map(text.count, "([{|")) > 30 or "__" in text:
        return False
    if not re.fullmatch(r"[\w\s+\-*/^_=<>|.,()\[\]{}\\&]*", text, re.ASCII):
        return False
    if not set(re.findall(r"\\([A-Za-z]+)", text)) <= _COMMANDS:
        return False
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    if re.search(r"[A-Za-z]{4}|\d{16}", bare):
        return False
    exponents = re.findall(r"\^\s*(\{[^{}]*\}|-?\d+|\w)", text)
    if len(exponents) < text.count("^") or any("^" in exponent for exponent in exponents):
        return False
    powers = [int(n) for exponent in exponents for n in re.findall(r"\d+", exponent)]
    nested = len(re.findall(r"[)}\]]\s*\^", text))
    return max(powers, default=0) <= (50 if nested == 0 else 10) and nested <= 4


@lru_cache(maxsize=1024)
def _formula(text: str) -> Any:
    """The formula in sympy, its letters real but for i; None where it cannot be read, or might take long."""
    if not _tame(text):
        return None
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I, Symbol

    cased = ConversionConfig(lowercase_symbols=False)
    try:
        found = latex2sympy(text, is_real=True, conversion_config=cased, normalization_config=None)
        return found.xreplace({Symbol("i", real=True): I})
    except Exception:  # the parser's only kind
        return None
