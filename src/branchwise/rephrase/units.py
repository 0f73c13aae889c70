"""The units that numbers carry."""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction

from branchwise.rephrase.formulas import without_delimiters
from branchwise.rephrase.quantities import CARDINALS

_NAMES = {
    "$": "$ dollar dollars usd", "cent": "cent cents ¢", "€": "€ euro euros", "£": "£",
    "mm": "mm millimeter millimeters millimetre millimetres", "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches", "foot": "foot feet ft footage", "yard": "yard yards", "mile": "mile miles mileage",
    "second": "seconds sec", "minute": "minute minutes min mins", "hour": "hour hours hr hrs h hourly",
    "day": "day days daily", "week": "week weeks weekly", "month": "month months monthly",
    "year": "year years yr yrs yearly decade decades annual annually annum age aged ages old older younger",
    "mg": "mg milligram milligrams", "g": "g gram grams", "kg": "kg kilogram kilograms kilo kilos",
    "ounce": "ounce ounces oz", "pound": "pound pounds lb lbs", "ton": "ton tons tonne tonnes",
    "ml": "ml milliliter milliliters millilitre millilitres", "liter": "l liter liters litre litres",
    "gallon": "gallon gallons", "quart": "quart quarts", "pint": "pint pints", "cup": "cup cups",
    "teaspoon": "teaspoon teaspoons tsp teaspoonful teaspoonfuls", "tablespoon": "tablespoon tablespoons tbsp",
    "degree": "degree degrees ° circ",
    "radian": "radian radians", "acre": "acre acres",
}  # fmt: skip
_UNIT = {word: unit for unit, words in _NAMES.items() for word in words.split()}
_WORD = re.compile(r"[$€£¢°]|(?<![A-Za-z])[A-Za-z]+")
_AMOUNT = re.compile(
    r"[$€£]\s?(?=\.?\d)|(?<=\d)\s?[°¢]"
    r"|(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten))[\s-]{1,2}(?:square |cubic )?([A-Za-z]+)"
)
_KINDRED = ({"hour", "minute"}, {"cent", "$"})
"""Told in each other: half an hour, 30 minutes. Whether the amount is right is for the numbers to say."""


def _mentioned(text: str) -> set[str]:
    """Every unit named anywhere, attached to a number or not, with its kin."""
    named = {_UNIT[word.lower()] for word in _WORD.findall(_spelt(text)) if word.lower() in _UNIT}
    return named.union(*(kin for kin in _KINDRED if kin & named))


def _attached(text: str) -> set[str]:
    """Units that a number carries: `5 feet`, `$3`."""
    found = ((m[1] or m[0]).strip().lower() for m in _AMOUNT.finditer(_spelt(text)))
    return {_UNIT[word] for word in found if word in _UNIT}


def _spelt(text: str) -> str:
    text = re.sub(r"\b(\w+)/h(?:r|our)?\b", r"\1 per hour", without_delimiters(text).replace("\\", ""))
    return re.sub(r"(?<=\d)\s*mph\b", " miles per hour", text)


def missing_units(original: str, rephrasing: str) -> list[str]:
    """Units that numbers of the original carry and that the rephrasing names nowhere."""
    return sorted(_attached(original) - _mentioned(rephrasing))


def new_units(original: str, rephrasing: str) -> list[str]:
    """Units that numbers of the rephrasing carry and that the original names nowhere."""
    return sorted(_attached(rephrasing) - _mentioned(original))


_SPANS = ("second", "minute", "hour", "day", "week", "month", "year")
_VALUE = (
    rf"(?P<value>\d[\d,]*(?:\.\d+)?|\.\d+|\b(?:{'|'.join(CARDINALS)})\b)"
    r"(?:\s?(?P<sign>[°¢€])|[\s-]{1,2}(?P<word>[A-Za-z]+))?"
)
_CARRIED = re.compile(rf"(?P<money>[$€£])?\s?{_VALUE}", re.IGNORECASE)


def swapped_units(original: str, rephrasing: str) -> str | None:
    """A number that carries another unit now (`$2` as `2 cents`), or a span of time that became another (day, week)."""
    before, after = _by_value(original), _by_value(rephrasing)
    for value in before.keys() & after.keys():
        if before[value].isdisjoint(after[value]):
            return f"{value} {min(before[value])} became {value} {min(after[value])}"
    named = [{_UNIT.get(word.lower()) for word in _WORD.findall(_spelt(text))} for text in (original, rephrasing)]
    lost, new = ([span for span in _SPANS if span in a and span not in b] for a, b in (named, named[::-1]))
    if len(lost) == len(new) == 1 and not {lost[0], new[0]} <= {"hour", "minute"}:
        return f"{lost[0]} became {new[0]}"
    return None


def _by_value(text: str) -> dict[Fraction, set[str]]:
    """The units that each number carries, where it carries one."""
    carried = defaultdict(set)
    for m in _CARRIED.finditer(_spelt(text)):
        if unit := _UNIT.get((m["money"] or m["sign"] or m["word"] or "").lower()):
            word = m["value"].lower()
            value = CARDINALS[word] if word in CARDINALS else word.replace(",", "")
            carried[Fraction(value)].add(unit)
    return carried
