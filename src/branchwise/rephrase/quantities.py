"""The numbers of a question, whether digits, words, fractions or LaTeX say them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"  # noqa: E501
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: i for i, word in enumerate(_UNITS.split())} | {
    word: 10 * i for i, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_TIMES = {
    "twice": 2, "double": 2, "doubles": 2, "doubled": 2, "doubling": 2, "twofold": 2,
    "thrice": 3, "triple": 3, "triples": 3, "tripled": 3, "tripling": 3, "threefold": 3,
    "quadruple": 4, "quadruples": 4, "quadrupled": 4, "fourfold": 4,
}  # fmt: skip
_LOOSE = {"once": 1, "single": 1, "both": 2, "pair": 2, "pairs": 2, "couple": 2, "full": 1, "first": 1, "second": 2}
_SPANS = {"minute": 60, "hour": 60, "week": 7, "day": 24, "year": 12}
"""How many of the next smaller unit: a week is seven days."""
_ORDINALS = "third fourth fifth sixth seventh eighth ninth tenth"
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
_PARTS |= {word: i for i, word in enumerate(_ORDINALS.split(), start=3)}
_PARTS |= {word + "s": i for i, word in enumerate(_ORDINALS.split(), start=3)}
_SIGNS = str.maketrans({
    "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "⅕": " 1/5", "⅛": " 1/8",
    "²": "^2", "³": "^3", "⁄": "/", "−": "-", "\u00a0": " ", "\u202f": " ", "’": "'",
})  # fmt: skip
_TOKEN = re.compile(
    r"\\[dt]?frac\s*(?:\{\s*(?P<n>\d+)\s*\}|(?P<n1>\d))\s*(?:\{\s*(?P<d>\d+)\s*\}|(?P<d1>\d))"
    r"|(?P<top>\d+)/(?P<bottom>\d+)(?![\d/])"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?P<suffix>st\b|nd\b|rd\b|th\b)?"
    r"|(?P<percent>\\?%|(?:per\s?cent(?:age)?)\b)"
    r"|\\[A-Za-z]+"
    r"|(?P<word>[A-Za-z]+)",
    re.IGNORECASE,
)

_NEGATIVE = re.compile(r"(?:\A|\n)-\Z|(?:[A-Za-z]{2}[^\S\n]|[(,][^\S\n]?)-\s?\Z|\bnegative\s\Z", re.IGNORECASE)
"""What stands before a number below zero; a minus after a number or a variable subtracts, and one that
begins a line before a blank is a list's."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a text."""

    readings: tuple[Fraction, ...]
    """What it may stand for, the likeliest first: `fifth` is 5 or 1/5; 50% is 1/2 alone, so its sign is never lost."""
    text: str
    loose: bool = False
    """Comes and goes in rewording: one, first, both, a pair."""
    place: bool = False
    """An order or a pair, which never stands for an amount: `the second` is not `two`."""

    def agrees(self, other: Quantity) -> bool:
        return not set(self.readings).isdisjoint(other.readings)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    value: Fraction
    word: str
    glued: bool
    """Only blanks or a hyphen stand between it and the token before."""


def quantities(text: str) -> list[Quantity]:
    """All numbers of a text, in order; `$`, thousands separators and trailing zeros make no difference."""
    return list(_read(list(_tokens(_plain(text)))))


def _plain(text: str) -> str:
    text = text.translate(_SIGNS).replace("{,}", ",").replace("\\!", "").replace("\\$", "$")
    return re.sub(r"(?<=\d)\\,(?=\d{3})", ",", text)


def _tokens(text: str) -> Iterator[_Token]:
    end = 0
    for match in _TOKEN.finditer(text):
        glued = re.fullmatch(r"[\s-]*", text[end : match.start()]) is not None
        end = match.end()
        top, bottom = match["n"] or match["n1"] or match["top"], match["d"] or match["d1"] or match["bottom"]
        if top and _exact(bottom):
            yield _Token("fraction", _exact(top) / _exact(bottom), match[0], glued)
        elif match["number"]:
            sign = -1 if _NEGATIVE.search(text[max(0, match.start() - 20) : match.start()]) else 1
            value = sign * _exact(match["number"].replace(",", ""))
            yield _Token("ordinal" if match["suffix"] else "number", value, match[0], glued)
        elif match["percent"]:
            yield _Token("percent", Fraction(1, 100), match[0], glued)
        else:
            yield _Token("word", Fraction(0), (match["word"] or "").lower(), glued)


def _exact(digits: str) -> Fraction:
    """By way of Decimal, which reads any number of digits; a model that stutters writes thousands."""
    return Fraction(Decimal(digits))


def _read(tokens: list[_Token]) -> Iterator[Quantity]:
    i = 0
    while i < len(tokens):
        found, j = _quantity(tokens, i)
        if found:
            yield found
        i = max(j, i + 1)


def _quantity(tokens: list[_Token], i: int) -> tuple[Quantity | None, int]:
    token = tokens[i]
    if token.kind == "ordinal":
        return Quantity((token.value,), token.word), i + 1
    if found := _idiom(tokens, i):
        return found
    if token.kind == "word" and (token.word in _LOOSE or token.word in _TIMES):
        factor = _LOOSE.get(token.word) or _TIMES[token.word]
        place = token.word in ("first", "second", "pair", "pairs")
        return Quantity((Fraction(factor),), token.word, loose=token.word in _LOOSE, place=place), i + 1
    value, j, spelt = _cardinal(tokens, i)
    if value is None:
        return _part(tokens, i)
    return _extended(tokens, i, j, value, spelt)


def _idiom(tokens: list[_Token], i: int) -> tuple[Quantity, int] | None:
    """Spans of time and of eggs that are numbers: an hour is 60 minutes, half an hour 30, a decade 10 years."""
    words = [token.word for token in tokens[i : i + 3]]
    half_hour = (Fraction(1, 2), Fraction(30))
    if words[0] in ("half", "1/2") and words[1:] in (["a", "dozen"], ["an", "hour"]):
        return Quantity((Fraction(6),) if words[2] == "dozen" else half_hour, " ".join(words)), i + 3
    if words[:2] == ["half", "hour"]:
        return Quantity(half_hour, "half hour"), i + 2
    if words[0] in ("a", "an", "one", "1") and len(words) > 1 and words[1] in _SPANS:
        readings = (Fraction(1), Fraction(_SPANS[words[1]]))
        return Quantity(readings, " ".join(words[:2]), loose=words[0] != "1"), i + 2
    if words[0] == "decade":
        return Quantity((Fraction(10),), "decade"), i + 1
    return None


def _cardinal(tokens: list[_Token], i: int) -> tuple[Fraction | None, int, bool]:
    """A whole cardinal from token i: `24`, `twenty-four`, `a hundred and five`, `3 dozen`; and whether words say it."""
    total, group, j, spelt = Fraction(0), None, i, False
    while j < len(tokens):
        token = tokens[j]
        joined = j == i or token.glued
        if token.kind in ("number", "fraction") and j == i:
            group = token.value
        elif token.kind == "word" and joined and token.word in CARDINALS and _continues(group, spelt, token.word):
            group, spelt = (group or Fraction(0)) + CARDINALS[token.word], True
        elif token.kind == "word" and joined and token.word in _SCALES and (group is not None or _article(tokens, j)):
            scaled = (Fraction(1) if group is None else group) * _SCALES[token.word]
            total, group = (total, scaled) if token.word == "hundred" else (total + scaled, Fraction(0))
            spelt = True
        elif spelt and joined and token.word == "and" and _number_word(tokens, j + 1) and group is not None:
            pass
        else:
            break
        j += 1
    return (None if j == i else total + (group or 0)), j, spelt


def _continues(group: Fraction | None, spelt: bool, word: str) -> bool:
    """Whether a word continues a cardinal: `forty` `two`, `hundred` `five`; not `two` `three`, nor `40` `four`."""
    value = CARDINALS[word]
    if group is None or group == 0:
        return True
    return (
        spelt
        and group.denominator == 1
        and (group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and 0 < value < 10))
    )


def _article(tokens: list[_Token], j: int) -> bool:
    return j > 0 and tokens[j - 1].word in ("a", "per", "half", "the", "several")


def _number_word(tokens: list[_Token], j: int) -> bool:
    return j < len(tokens) and tokens[j].word in CARDINALS and j >= 2 and tokens[j - 2].word in _SCALES


def _extended(tokens: list[_Token], i: int, j: int, value: Fraction, spelt: bool) -> tuple[Quantity, int]:
    """A cardinal with what belongs to it: `two thirds`, `2 1/2`, `one and a half`, `10%`."""
    words = " ".join(token.word for token in tokens[i:j])
    after = tokens[j] if j < len(tokens) else None
    if after and after.glued:
        if after.kind == "percent":
            return Quantity((value / 100,), f"{words}%"), j + 1
        if after.kind == "fraction" and tokens[j - 1].kind == "number" and after.value < 1:
            return _scaled(tokens, j + 1, value + after.value, f"{words} {after.word}")
        if spelt and after.word in _PARTS and value < 20:
            share = value / _PARTS[after.word]
            return Quantity((share, value) if after.word == "quarters" else (share,), f"{words} {after.word}"), j + 1
    following = [token.word for token in tokens[j : j + 3]]
    if len(following) == 3 and following[0] == "and" and following[1] in ("a", "one") and following[2] in _PARTS:
        return _scaled(tokens, j + 3, value + Fraction(1, _PARTS[following[2]]), f"{words} and a {following[2]}")
    loose = spelt and value == 1
    return Quantity((value,), words, loose=loose), j


def _scaled(tokens: list[_Token], j: int, value: Fraction, text: str) -> tuple[Quantity, int]:
    """A mixed number with the scale after it, if there is one: `1 1/2 dozen`."""
    scale = _SCALES.get(tokens[j].word) if j < len(tokens) and tokens[j].glued else None
    return Quantity((value * (scale or 1),), f"{text} {tokens[j].word}" if scale else text), j + bool(scale)


def _part(tokens: list[_Token], i: int) -> tuple[Quantity | None, int]:
    """`half`, `a third of`, `the fifth`, `half a dozen`."""
    word = tokens[i].word
    if word not in _PARTS or tokens[i].kind != "word":
        return None, i + 1
    share = Fraction(1, _PARTS[word])
    if _PARTS[word] == 2:
        return Quantity((share,), word), i + 1
    before = tokens[i - 1].word if i else ""
    after = tokens[i + 1].word if i + 1 < len(tokens) else ""
    is_share = word != "quarters" and (after == "of" or before in ("a", "an", "one"))
    return Quantity((share, Fraction(_PARTS[word])), word, loose=not is_share, place=not is_share), i + 1
