"""Words that a question's meaning turns on: what kind of number is asked for, and whether something is denied."""

from __future__ import annotations

import re

_KINDS = {
    "positive": ("positive", "natural numbers?|counting numbers?"),
    "negative": ("negative", r"below|under|minus|-\s?\d"),
    "integer": ("integers?", "integral|whole|natural numbers?|counting numbers?"),
    "prime": ("primes?", ""),
    "odd": ("odd", ""),
    "even": ("even (?:number|integer|digit|function)s?|(?:is|are|be) even", r"even(?: \w+)? (?:integer|number)s?"),
    "distinct": ("distinct", "different(?:ly)?|unique|unequal|pairwise|no two"),
    "consecutive": ("consecutive|successive", "in a row|in succession|one after the other|straight"),
    "real": ("real(?:[- ]valued)? (?:number|value|solution|root)s?", "reals?"),
    "complex": ("complex (?:number|value|solution|root)s?", "complex"),
    "replacement": ("(?:without|with) (?:replacement|replacing)", ""),
}
"""What asks for a kind of number, and what else says the same."""
_KIND = {
    name: (
        re.compile(rf"\b(?:{asked})\b", re.IGNORECASE),
        re.compile(rf"\b(?:{asked})\b|(?<!\w)(?:{also or asked})\b", re.IGNORECASE),
    )
    for name, (asked, also) in _KINDS.items()
}
_NEW = ("negative", "prime", "odd", "consecutive", "complex", "replacement")
"""Those that a rephrasing has no reason to add; `positive` and `distinct` come and go where they are implied."""
_NOT = re.compile(r"\b(?:not|never|cannot|neither|nor)\b|n't\b|(?<=[a-z]{2})n’t\b", re.IGNORECASE)
_DENIES = re.compile(
    _NOT.pattern
    + r"|\b(?:no|none|nobody|nothing|without|except|excluding|exclud\w+|exclusive|unless|lacks?|lacking|fail\w*|"
    r"rather|instead|un\w{4,}|non\w*|in(?:valid|correct|complete|divisible|sufficient)\w*|remain\w*|left|only|just|other|"
    r"false|wrong|avoid\w*|miss\w*|ignor\w*|short|until|yet|stop\w*|quit\w*|refus\w*|absent|least|most|still|rest|regardless|"
    r"impossible|few\w*|less|forg[eo]t\w*|zero|empty)\b",
    re.IGNORECASE,
)
"""All that may say `not` in other words."""


def changed_condition(original: str, text: str) -> str | None:
    """What a rephrasing leaves out or adds of the words that meaning turns on."""
    for name, (asked, said) in _KIND.items():
        before, after = asked.search(original), asked.search(text)
        if before and not said.search(text):
            return f"{before[0]!r} of the original is not there"
        if after and name in _NEW and not said.search(original):
            return f"{after[0]!r} is new"
    before, after = _NOT.search(original), _NOT.search(text)
    if after and not _DENIES.search(original):
        return f"{after[0]!r} is new"
    if before and not _DENIES.search(text):
        return f"{before[0]!r} of the original is not there"
    return None
