"""The units that numbers carry."""

from __future__ import annotations

import re

_NAMES = {
    "$": "$ dollar dollars usd", "cent": "cent cents ¢", "€": "€ euro euros", "£": "£",
    "mm": "mm millimeter millimeters millimetre millimetres", "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches", "foot": "foot feet ft footage", "yard": "yard yards", "mile": "mile miles mileage",
    "second": "seconds sec", "minute": "minute minutes min mins", "hour": "hour hours hr hrs hourly",
    "day": "day days daily", "week": "week weeks weekly", "month": "month months monthly",
    "year": "year years yr yrs yearly decade decades annual annually annum age aged ages old older younger",
    "mg": "mg milligram milligrams", "g": "gram grams", "kg": "kg kilogram kilograms kilo kilos",
    "ounce": "ounce ounces oz", "pound": "pound pounds lb lbs", "ton": "ton tons tonne tonnes",
    "ml": "ml milliliter milliliters millilitre millilitres", "liter": "liter liters litre litres",
    "gallon": "gallon gallons", "quart": "quart quarts", "pint": "pint pints", "cup": "cup cups",
    "teaspoon": "teaspoon teaspoons tsp teaspoonful teaspoonfuls", "tablespoon": "tablespoon tablespoons tbsp",
    "degree": "degree degrees ° circ",
    "radian": "radian radians", "acre": "acre acres",
}  # fmt: skip
_UNIT = {word: unit for unit, words in _NAMES.items() for word in words.split()}
_WORD = re.compile(r"[$€£¢°]|(?<![A-Za-z])[A-Za-z]+")
_AMOUNT = re.compile(
    r"[$€£]\s?(?=[\d.])|(?<=\d)\s?[°¢]"
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
    return re.sub(r"(?<=\d)\s*mph\b", " miles per hour", text.replace("\\", ""))


def missing_units(original: str, rephrasing: str) -> list[str]:
    """Units that numbers of the original carry and that the rephrasing names nowhere."""
    return sorted(_attached(original) - _mentioned(rephrasing))


def new_units(original: str, rephrasing: str) -> list[str]:
    """Units that numbers of the rephrasing carry and that the original names nowhere."""
    return sorted(_attached(rephrasing) - _mentioned(original))
