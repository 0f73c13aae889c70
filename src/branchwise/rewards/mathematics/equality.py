"""When two mathematical answers are equal: as text, as exact numbers, part by part, and last as formulas.

Precision comes before recall: what cannot be shown equal is unequal, and numbers are never compared by nearness.
Choices where usage differs:

- Percent: 35% is 0.35. A reference of 35% also takes a bare 35, and a bare reference of 35 also takes 35%; one below 1
  does not.
- Units: a number may come with or without its unit, but not with another one, even if it were converted.
- Bases: a bare 1011 answers 1011_2; any other base, or a base where the reference has none, is wrong.
- Equations: `x = 5` answers 5, and 5 answers `x = 5`; `y = 5` does not answer `x = 5`. Two equations are equal when one
  is a multiple of the other.
- Order counts in (1, 2) and [1, 2], and not in {1, 2} or 1, 2, which are equal.
- Intervals: `x ≥ 4` and [4, ∞) are equal, but where the reference is (2, 5), which may as well be a point, no
  inequality answers it.
- Letters of either case are different, stand for real numbers, and i is the imaginary unit. A formula is compared where
  the reference is real. The base of a bare `\\log` is unknown: `\\log 5` is neither `\\ln 5` nor `\\log_{10} 5`.
- Of `3\\pi \\approx 9.42`, 3π is the answer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from branchwise.rewards.mathematics import symbolic
from branchwise.rewards.mathematics.evaluation import within_limit
from branchwise.rewards.mathematics.formula import letters, read_formula
from branchwise.rewards.mathematics.notation import compact, normalise
from branchwise.rewards.mathematics.quantity import read_based, read_number, read_quantity
from branchwise.rewards.mathematics.relations import (
    Chain,
    read_chain,
    read_real_set,
    same_equation,
    same_inequality,
)
from branchwise.rewards.mathematics.structure import Parts, expand_signs, read_matrix, read_parts, split

LONGEST = 500
"""Characters; longer answers are compared as text alone."""
_SAYINGS = {
    "empty set": r"\emptyset", "the empty set": r"\emptyset", "no solution": r"\emptyset", "no solutions": r"\emptyset",
    "no real solution": r"\emptyset", "no real solutions": r"\emptyset", "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}", "dne": "does not exist", "t": "true", "f": "false",
}  # fmt: skip


@lru_cache(maxsize=4096)
def equal(gold: str, given: str) -> bool:
    """Whether an answer equals the reference."""
    if max(len(gold), len(given)) > 4 * LONGEST:
        return gold.strip() == given.strip()
    try:
        with within_limit():
            return _equal(normalise(gold), normalise(given))
    except RecursionError:  # parts within parts without end
        return False


def _equal(gold: str, given: str) -> bool:
    if not gold or not given:
        return False
    if compact(gold) == compact(given):
        return True
    if max(len(gold), len(given)) > LONGEST:
        return False
    for compare in (_same_label, _same_run, _same_base, _same_ratio, _same_quantity, _same_saying):
        verdict = compare(gold, given)
        if verdict is not None:
            return verdict
    gold, given = expand_signs(gold), expand_signs(given)
    for compare in (_same_named, _same_real_set, _same_matrix, _same_parts, _same_relation):
        verdict = compare(gold, given)
        if verdict is not None:
            return verdict
    return _same_words(gold, given) or symbolic.equal(gold, given)


_LABEL = re.compile(
    r"\(([A-J])\)(?! ?(?:[,;&/]|(?:or|and|is|isn['’]t|not)\b)|.*\([A-J]\)) ?\S.*"  # alone, and not denied
)


def _same_label(gold: str, given: str) -> bool | None:
    """A letter, and an option with its letter: `(B) 12`."""
    match = _LABEL.fullmatch(given) if len(gold) == 1 and gold.isupper() else None
    return match[1] == gold if match else None


def _same_base(gold: str, given: str) -> bool | None:
    a, b = read_based(gold), read_based(given)
    if a:
        return a.equals(given)
    if b:
        return b.base == 10 and (value := read_number(gold)) is not None and value == read_number(b.digits)
    return None


_RATIO = re.compile(r"[^:,=<>]+(?: ?: ?[^:,=<>]+)+")
_HALF_DAY = re.compile(r" ?([ap])\.? ?m\.?$", re.IGNORECASE)


def _same_ratio(gold: str, given: str) -> bool | None:
    """Ratios and times of day, number by number."""
    if not (_RATIO.fullmatch(gold) and _RATIO.fullmatch(given)):
        return None
    halves = [match[1].lower() if (match := _HALF_DAY.search(text)) else "" for text in (gold, given)]
    if all(halves) and halves[0] != halves[1]:
        return False
    a, b = (_HALF_DAY.sub("", text).split(":") for text in (gold, given))
    return len(a) == len(b) and all(_equal(x.strip(), y.strip()) for x, y in zip(a, b))


def _same_quantity(gold: str, given: str) -> bool | None:
    a, b = read_quantity(gold), read_quantity(given)
    return a.equals(b) if a and b else None


def _same_saying(gold: str, given: str) -> bool | None:
    a, b = (_SAYINGS.get(text.lower(), text) if len(text) > 2 else text for text in (gold, given))
    return None if (a, b) == (gold, given) else _equal(a, b)


def _same_run(gold: str, given: str) -> bool | None:
    """Three letters and more, alone on both sides, are words: dog is no god, though as products they are equal."""
    return _same_words(gold, given) if min(len(gold), len(given)) > 2 and (gold + given).isalpha() else None


def _same_words(gold: str, given: str) -> bool:
    a, b = _words(gold), _words(given)
    return bool(a) and a == b


def _words(text: str) -> list[str]:
    """Of a text of words alone, in lower case, without an article before them."""
    words = re.sub(r"(?<=[^\W\d])[-'’](?=[^\W\d])", " ", text).casefold().split()
    if words and words[0] in ("the", "a", "an") and len(words) > 1:
        words = words[1:]
    return words if len("".join(words)) > 1 and all(map(str.isalnum, words)) else []


# --- names of values: x = 5


_NAME = re.compile(
    r"\(?\\?[A-Za-z][A-Za-z ]{0,30}'?(?:_\{[^{}]*\}|_\w)?(?:\^\{?-1\}?)?(?: ?\([A-Za-z](?: ?, ?[A-Za-z])*\))?\)?"
    r"|[fghpqFGHPQ](?:\^\{?-1\}?)? ?\(-?\d+\)"
)
_TUPLE_NAME = re.compile(r"\( ?[A-Za-z](?:_\d)?(?: ?, ?[A-Za-z](?:_\d)?)+ ?\)")
_MEMBER = re.compile(r"([A-Za-z]) ?\\in ?(\\\{.*)")


def _same_named(gold: str, given: str) -> bool | None:
    """`x = 5` and 5 are equal, `x = 5` and `y = 5` are not."""
    (gold_name, gold_value), (given_name, given_value) = _named(gold), _named(given)
    if not (gold_name or given_name) and (gold_value, given_value) == (gold, given):
        return None
    if gold_name == given_name or not (gold_name and given_name):
        if gold_name and gold_name == given_name:
            return _equal(gold_value, given_value)
        # an equation of another kind may still be meant, such as y = 2x for 2x - y = 0
        return _equal(gold_value, given_value) or _same_relation(gold, given) is True
    a, b = _argument(gold_name), _argument(given_name)
    if a and b and a[0] == b[0]:
        return _equal(gold_value, _renamed(given_value, b[1], a[1]))
    return None


def _named(text: str) -> tuple[str, str]:
    """`x = 5` as ('x', '5'), and 5 as ('', '5'); of `x = 2 + 3 = 5` and `2 + 3 = 5` the last side, if they are true."""
    if member := _MEMBER.fullmatch(text):
        return member[1], member[2]
    items = split(text)
    if len(items) > 1 and any(_has_sign(item) for item in items[1:]):
        return "", text
    chain = read_chain(text)
    if chain is None or not set(chain.signs) <= {"=", "\\approx"}:
        return "", text
    sides = list(chain.sides)
    if "\\approx" in chain.signs:
        first = chain.signs.index("\\approx")
        sides = sides[: first + (1 if first or not _is_name(sides[0]) else 2)]
    name = ""
    if len(sides) > 1 and _is_name(sides[0]):
        name = sides.pop(0)
    elif len(sides) > 1 and _is_name(sides[-1]) and read_number(sides[0]):
        name = sides.pop()
    if not _leads_to_last(sides, name):
        return "", text
    return compact(name), sides[-1]


def _leads_to_last(sides: list[str], name: str) -> bool:
    """Whether true steps end in a value: `2 + 3 = 5` does; `2 = 2` says nothing, and `x + 1 = 1 + x` is no value."""
    last = sides[-1]
    if _contains(last, name) or not all(_equal(side, last) for side in sides[:-1]):
        return False
    if name or len(sides) == 1:
        return True
    return _is_constant(last) and any(compact(side) != compact(last) for side in sides)


def _has_sign(text: str) -> bool:
    return read_chain(text) is not None


def _is_name(text: str) -> bool:
    if _TUPLE_NAME.fullmatch(text):
        return True
    return bool(_NAME.fullmatch(text)) and text not in ("i", "e", "\\pi") and not text.startswith("not ")


def _is_constant(text: str) -> bool:
    quantity = read_quantity(text)
    return quantity is not None and not letters(quantity.node)


def _contains(text: str, name: str) -> bool:
    """Whether a value is in terms of itself."""
    node = read_formula(text)
    return bool(name) and node is not None and name in letters(node)


def _argument(name: str) -> tuple[str, str] | None:
    match = re.fullmatch(r"(.+)\(([A-Za-z])\)", name)
    return (match[1], match[2]) if match else None


def _renamed(text: str, letter: str, to: str) -> str:
    return re.sub(rf"\\[A-Za-z]+|{letter}", lambda m: to if m[0] == letter else m[0], text)


# --- parts


def _same_real_set(gold: str, given: str) -> bool | None:
    if not any(map(_is_about_reals, (gold, given))):
        return None
    a, b = read_real_set(gold), read_real_set(given)
    if a is None or b is None:
        return None
    return not (a.is_plain and not b.is_plain) and a.equals(b)


def _is_about_reals(text: str) -> bool:
    return bool(re.search(r"\\(?:cup|infty|mathbb|in|le|ge|ne)(?![A-Za-z])|[<>]", text)) or (
        text[:1] + text[-1:] in ("[)", "(]")
    )


def _same_matrix(gold: str, given: str) -> bool | None:
    a, b = read_matrix(gold), read_matrix(given)
    if a is None and b is None:
        return None
    if a is None or b is None or a.is_determinant != b.is_determinant or len(a.rows) != len(b.rows):
        return False
    return all(len(x) == len(y) and all(map(_equal, x, y)) for x, y in zip(a.rows, b.rows))


def _same_parts(gold: str, given: str) -> bool | None:
    a, b = read_parts(gold), read_parts(given)
    if a is None and b is None:
        return None
    if a is None or b is None:
        return _same_single(gold, given, a or b)
    names = _names(a) or _names(b)
    if names and not (_names(a) and _names(b)):
        return _same_assignment(a, b, names)
    if a.brackets != b.brackets or len(a.items) != len(b.items):
        return False
    if a.is_ordered:
        return all(map(_equal, a.items, b.items))
    left = list(b.items)
    for item in a.items:
        match = next((i for i, other in enumerate(left) if _equal(item, other)), None)
        if match is None:
            return False
        del left[match]
    return True


def _same_single(gold: str, given: str, parts: Parts | None) -> bool | None:
    """A set of one and its member; a list that may also be read as a number with thousands, such as 125,300."""
    scalar = given if read_parts(gold) else gold
    if parts and len(parts.items) == 1 and "\\emptyset" not in (scalar, parts.items[0]):
        return _equal(parts.items[0], scalar) if scalar == given else _equal(scalar, parts.items[0])
    if parts and not parts.brackets and re.fullmatch(r"\d+(?:,\d+)+", scalar):
        return sorted(parts.items) == sorted(scalar.split(","))
    return None if _has_sign(gold) and _has_sign(given) else False


def _names(parts: Parts) -> list[str]:
    """The names in `x = 1, y = 2`, where every item has one of its own."""
    names = [_named(item)[0] for item in parts.items]
    return names if all(names) and len(set(names)) == len(names) else []


def _same_assignment(a: Parts, b: Parts, names: list[str]) -> bool:
    """`x = 1, y = 2` and (1, 2) or 1, 2: in order, and that order must be the alphabet's."""
    if len(a.items) != len(b.items) or names != sorted(names) or {a.brackets, b.brackets} - {"", "()"}:
        return False
    return all(map(_equal, a.items, b.items))


def _same_relation(gold: str, given: str) -> bool | None:
    a, b = read_chain(gold), read_chain(given)
    if a is None and b is None:
        return None
    if a is None or b is None:
        return False
    if "=" in (*a.signs, *b.signs):
        return _same_statement(a, b) or same_equation(a, b)
    return same_inequality(a, b)


def _same_statement(a: Chain, b: Chain) -> bool:
    """Relations side by side, in either order, where their sides are no formulas: `\\angle A = 90`."""
    if a.signs != b.signs or len(a.sides) != 2:
        return False
    return any(all(map(_equal, a.sides, sides)) for sides in (b.sides, b.sides[::-1]))
