"""Numbers and formulas with what stands beside them: a unit, a currency, a percent sign, a base."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from branchwise.rewards.mathematics import words
from branchwise.rewards.mathematics.evaluation import constant, same_value
from branchwise.rewards.mathematics.formula import Node, number, read_formula

_N = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBERS = [
    re.compile(rf"(?P<sign>[-+]?) ?{form}")
    for form in (
        rf"(?P<top>{_N})",
        rf"(?P<whole>\d+)? ?\\frac\{{ ?(?P<top>[-+]?(?:{_N})) ?\}}\{{ ?(?P<bottom>[-+]?(?:{_N})) ?\}}",
        r"(?P<whole>\d+) (?P<top>\d+) ?/ ?(?P<bottom>\d+)",
        rf"(?P<top>{_N}) ?/ ?(?P<bottom>{_N})",
        rf"(?P<top>{_N}) ?(?:(?:\\times|\\cdot|\*|[xX]) ?10 ?\^ ?\{{? ?|[eE])(?P<exponent>[-+]?\d{{1,3}}) ?\}}?",
        r"(?P<top>\d*\.?\d*)\\overline\{(?P<repeating>\d+)\}",
    )
]
_WORD_NUMBERS = {
    word: value
    for value, word in enumerate(
        words(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        )
    )
}
_MULTIPLES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_TIMES = re.compile(rf"(?P<core>.*[^ ]) ?\b(?P<multiple>{'|'.join(_MULTIPLES)})", re.IGNORECASE)
_SCALES = frozenset(
    words("""
    pi e i or and to of sqrt dozen hundred thousand million billion trillion half halves third quarter fourth fifth
    sixth seventh eighth ninth tenth hundredth thousandth squared cubed plus minus times over more less mod modulo
    score gross pair couple double triple twice ten root power factorial choose base not nor no than least most about
    approximately roughly nearly almost remainder negative point divided multiplied by log ln sin cos tan k thousandths
    percentage percent points bn mn wrong false incorrect if when where is isn't infinity each fewer bigger smaller
    larger higher lower greater inverse reciprocal negated doubled halved tripled impossible invalid undefined unknown
    none grand lakh crore googol myriad twelfth
    """)
) | frozenset(_WORD_NUMBERS)
"""Words that change a number, and so are no units."""
_SCALED = re.compile("illions?$|(?:teen|tie|eleven|hundred|million|billion)ths?$")
_SYNONYMS = {
    synonym: unit
    for unit, synonyms in {
        "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre kms",
        "m": "meter metre",
        "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "kg": "kilogram kilo", "g": "gram",
        "mg": "milligram", "lb": "pound", "oz": "ounce", "l": "liter litre", "ml": "milliliter millilitre",
        "s": "second sec", "min": "minute", "h": "hour hr", "day": "", "week": "wk", "year": "yr", "month": "",
        "mph": "", "dollar": "$ usd buck", "cent": "¢", "euro": "€ eur", "gbp": "£", "yen": "¥", "rupee": "₹ rs",
        "degree": r"\degree deg", "radian": "rad", "unit": "", "am": "a.m", "pm": "p.m", "newton": "", "joule": "",
        "watt": "", "volt": "", "mole": "mol", "kelvin": "", "celsius": "", "fahrenheit": "",
        "acre": "", "gallon": "gal", "quart": "", "pint": "", "cup": "", "people": "person", "percent": "%",
    }.items()
    for synonym in (unit, *synonyms.split())
}  # fmt: skip
_KNOWN = "|".join(sorted((re.escape(u) for u in _SYNONYMS if len(u) > 1 and u.isalpha()), key=len, reverse=True))
_PER = r"(?: ?/ ?| per | a )"
_MARKED = re.compile(
    rf"(?P<core>.*?[\w)\]}}!]) ?(?P<unit>(?<![A-Za-z\\])(?:sq\.?|square|cubic)? ?\b(?:{_KNOWN})(?:s|es)?\.?"
    rf"(?: ?\^ ?\{{?[23]\}}?| squared| cubed)?(?:{_PER}[A-Za-z]+(?:\^\{{?\d\}}?)?)?)",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"(?P<core>[^A-Za-z]*?(?:\\frac[^A-Za-z]*)?[\d}]" + rf"(?: (?:{'|'.join(_MULTIPLES)})\b)?) ?"
    r"(?P<unit>[A-Za-z][A-Za-z. '/-]{0,38}(?: ?\^ ?\{?[23]\}?)?)"
)
_DEGREES = re.compile(r"(?P<core>.*[\d)}]) ?\\degree ?(?P<scale>[CF]?)")
_TRIGONOMETRY = re.compile("sin|cos|tan|cot|sec|csc")
_RATE = re.compile(r"(?: per |/| an? | each )([A-Za-z]+)$")
_CURRENCY = re.compile(r"(?P<sign>-?) ?(?P<unit>[$€£¥₹]) ?(?P<core>.+)")


@dataclass(frozen=True, slots=True)
class Quantity:
    node: Node
    percent: bool = False
    unit: str = ""
    """'' for none; 'cm', 'cm^2', 'km/h'."""

    def equals(self, other: Quantity) -> bool:
        """Whether this reference equals that answer: in value, and in unit where both have one."""
        return (not (self.unit and other.unit) or self.unit == other.unit) and self._same_value(other)

    def _same_value(self, other: Quantity) -> bool:
        if self.percent == other.percent:
            return _same(self.node, other.node)
        if self.percent:
            return _same(self.node, other.node) or _same(_hundredth(self.node), other.node)
        if _same(self.node, _hundredth(other.node)):
            return True
        value = constant(self.node)
        return value is not None and bool(value >= 1) and _same(self.node, other.node)


@lru_cache(maxsize=4096)
def read_quantity(text: str) -> Quantity | None:
    """A number or a formula with its percent sign or unit; None for all else."""
    core, unit = text, ""
    if "\\degree" in core and not _TRIGONOMETRY.search(core) and (match := _DEGREES.fullmatch(core)):
        core, unit = match["core"], {"C": "celsius", "F": "fahrenheit"}.get(match["scale"], "degree")
    elif core[:1] in "-$€£¥₹" and (match := _CURRENCY.fullmatch(core)):
        core, unit = match["sign"] + match["core"], _canonical(match["unit"])
        core, per = _RATE.sub("", core), _RATE.search(core)
        core, again = _split_unit(core)
        if again and again != unit:
            return None
        unit += f"/{per[1].lower()}" if per else ""
    elif core.endswith(("$", "€", "£", "¥", "₹", "¢")):
        core, unit = core[:-1].rstrip(), _canonical(core[-1])
    percent = core.endswith("%")
    core = core[:-1].rstrip() if percent else core
    node = read_number(core)
    if node is None and not unit and not percent:
        core, unit = _split_unit(core)
        node = read_number(core) if unit else None
    node = node or read_formula(core)
    return None if node is None else Quantity(node, percent, "" if unit.startswith("unit") else unit)


def read_number(text: str) -> Node | None:
    """An integer, decimal, fraction, mixed number, power of ten or repeating decimal, exactly."""
    if text.lower() in _WORD_NUMBERS:
        return number(_WORD_NUMBERS[text.lower()])
    if text[-1:].isalpha() and (match := _TIMES.fullmatch(text)):
        value = read_number(match["core"])
        return number(value[1] * _MULTIPLES[match["multiple"].lower()]) if value else None
    if not text[-1:] or not (text[-1].isdigit() or text[-1] == "}"):
        return None
    for form in _NUMBERS:
        if match := form.fullmatch(text):
            return _number(match.groupdict())
    return None


def _number(parts: dict[str, str | None]) -> Node | None:
    bottom, whole = _exact(parts.get("bottom") or "1"), parts.get("whole")
    top = _exact(parts["top"] or "0")
    if bottom == 0 or (whole and not 0 <= top < bottom):
        return None  # 2\frac{3}{2} is no mixed number, and as a product unusual
    value = _exact(whole or "0") + top / bottom
    if digits := parts.get("repeating"):
        places = len((parts["top"] or "").partition(".")[2])
        if "." not in (parts["top"] or ""):
            return None
        value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
    value *= Fraction(10) ** int(parts.get("exponent") or 0)
    return number(-value if parts["sign"] == "-" else value)


def _exact(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))


def _split_unit(text: str) -> tuple[str, str]:
    """A text without its unit, and the unit: a known one, or after a plain number any words that change no number."""
    if len(text) > 120 or not (text[-1:].isalnum() or text[-1:] in (".", "}")):
        return text, ""
    if match := _MARKED.fullmatch(text):
        return match["core"].rstrip(), _canonical(match["unit"])
    if match := _PLAIN.fullmatch(text):
        words = re.split(r"[ ./^-]+", match["unit"].lower())
        unit = match["unit"]
        if _are_units(words) and (len(unit) > 3 and re.search("[aeiouy]", unit) and len(words) <= 5):
            return match["core"].rstrip(), _canonical(unit)
    return text, ""


def _are_units(words: list[str]) -> bool:
    return not any(_SCALED.search(word) or word in _SCALES or word.removesuffix("s") in _SCALES for word in words)


def _canonical(unit: str) -> str:
    """One spelling for a unit: 'cm^2' for square centimetres."""
    unit = re.sub(r" ?(\^ ?\{?2\}?| squared)", "^2", unit.lower().strip().rstrip("."))
    unit = re.sub(r" ?(\^ ?\{?3\}?| cubed)", "^3", unit)
    unit = re.sub(r"^(?:sq\.?|square) ([^/^ ]+)", r"\1^2", unit)
    unit = re.sub(r"^cubic ([^/^ ]+)", r"\1^3", unit)
    unit = re.sub(r" (?:per|a) | ?/ ?", "/", unit)
    parts = []
    for part in unit.split("/"):
        name, power, exponent = part.partition("^")
        singular = name.removesuffix("s") if len(name) > 2 else name
        parts.append(_SYNONYMS.get(name, _SYNONYMS.get(singular, singular)) + power + exponent)
    return {"mi/h": "mph"}.get("/".join(parts), "/".join(parts))


def _same(a: Node, b: Node) -> bool:
    if a[0] == b[0] == "number":
        return bool(a[1] == b[1])
    return same_value(a, b)


def _hundredth(node: Node) -> Node:
    return number(node[1] / 100) if node[0] == "number" else ("/", node, number(100))


# --- other bases


_BASED = re.compile(
    r"(?P<sign>-?)(?P<open>\()?(?P<digits>[0-9A-Z][0-9A-Z ]*(?:\.[0-9A-Z]+)?)(?(open)\)) ?"
    r"(?:_ ?\{? ?\(?(?:base ?)?|\(? ?base[ -]?)(?P<base>\d{1,2}|[a-z]+)\)? ?\}?\)?"
)
_PREFIXED = re.compile(r"0(?P<prefix>[xbo])(?P<digits>[0-9A-Fa-f]+)")
_BASES = _WORD_NUMBERS | {"sixteen": 16, "twelve": 12}


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a stated base."""

    digits: str
    base: int

    def equals(self, given: str) -> bool:
        """Whether this reference is an answer: in the same base, or in the same digits alone."""
        other = read_based(given)
        if other is not None:
            return self == other
        if self.base == 10 and (node := read_number(given)):
            return node == read_number(self.digits)
        return self.digits == given.replace(" ", "").lstrip("0")


def read_based(text: str) -> Based | None:
    """`1011_2`, `(1011)_2`, `1011 base 2`, `0b1011`; None where a digit is too large for the base."""
    if match := _PREFIXED.fullmatch(text):
        sign, base, digits = "", {"x": 16, "b": 2, "o": 8}[match["prefix"]], match["digits"].upper()
    elif "_" in text or "base" in text:
        match = _BASED.fullmatch(text)
        if match is None or not re.search(r"\d", match["digits"] + match["base"]):
            return None
        base = int(match["base"]) if match["base"].isdigit() else _BASES.get(match["base"], 0)
        sign, digits = match["sign"], match["digits"].replace(" ", "")
    else:
        return None
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits.replace(".", "")):
        return None
    return Based(sign + (digits.lstrip("0") or "0"), base)
