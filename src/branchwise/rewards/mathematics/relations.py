"""Equations, inequalities, and the sets of real numbers that intervals and inequalities describe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

from branchwise.rewards.mathematics.evaluation import compare, constant, near, same_up_to_factor
from branchwise.rewards.mathematics.formula import Node, letters, number, read_formula
from branchwise.rewards.mathematics.structure import is_enclosed, read_parts

_RELATION = re.compile(r"(?<!\\)[{}]| ?(\\(?:le|ge|ne|approx|equiv)(?![A-Za-z])|=|<|>) ?")
_FLIPPED = {">": "<", "\\ge": "\\le", "<": "<", "\\le": "\\le", "\\ne": "\\ne"}
_BUILDER = re.compile(r"\\\{ ?(?P<name>[A-Za-z]) ?(?:\\in ?\\mathbb\{R\} ?)?[|:] ?(?P<condition>.+?) ?\\\}")
_MEMBER = re.compile(r"(?P<name>[A-Za-z]) ?\\in ?(?P<set>.+)")


@dataclass(frozen=True, slots=True)
class Chain:
    """`a < b ≤ c` as its sides and the signs between them."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]


def read_chain(text: str) -> Chain | None:
    """The sides of a relation; None where there is none, or where a side is empty."""
    sides, signs, start, depth = [], [], 0, 0
    for match in _RELATION.finditer(text):
        if match[0] in "{}":
            depth += 1 if match[0] == "{" else -1
        elif depth == 0:
            sides.append(text[start : match.start()].strip())
            signs.append(match[1])
            start = match.end()
    sides.append(text[start:].strip())
    return Chain(tuple(sides), tuple(signs)) if signs and all(sides) else None


def same_equation(gold: Chain, given: Chain) -> bool:
    """Whether one equation is the other times a constant; where the reference is solved, so must the answer be."""
    if _is_solved(gold) and not _is_solved(given):
        return False
    a, b = (_difference(*chain.sides) if chain.signs == ("=",) else None for chain in (gold, given))
    return a is not None and b is not None and bool(letters(a)) and same_up_to_factor(a, b, positive=False)


def same_inequality(gold: Chain, given: Chain) -> bool:
    """Whether each inequality of a chain is the other's times a positive constant; solved as the reference is."""
    if _is_solved(gold) and not _is_solved(given):
        return False
    a, b = _ascending(gold), _ascending(given)
    if a is None or b is None or a.signs != b.signs:
        return False
    for left, right in zip(_links(a), _links(b)):
        if left is None or right is None or not letters(left):
            return False
        either_side = a.signs == ("\\ne",)
        if not same_up_to_factor(left, right, positive=not either_side):
            return False
    return True


def _is_solved(chain: Chain) -> bool:
    """A letter and its constant, as `x = 5` or `x > 3`; what is yet to be solved may be the question itself."""
    sides = [read_formula(side) for side in chain.sides]
    if len(sides) != 2 or None in sides:
        return False
    return any(a and b and a[0] == "letter" and not letters(b) for a, b in (sides, sides[::-1]))


def _ascending(chain: Chain) -> Chain | None:
    """With < and ≤ alone; None where signs go both ways."""
    if not set(chain.signs) <= _FLIPPED.keys():
        return None
    if all(sign in (">", "\\ge") for sign in chain.signs):
        return Chain(chain.sides[::-1], tuple(_FLIPPED[sign] for sign in chain.signs[::-1]))
    return chain if all(sign in ("<", "\\le") for sign in chain.signs) or chain.signs == ("\\ne",) else None


def _links(chain: Chain) -> list[Node | None]:
    return [_difference(a, b) for a, b in pairwise(chain.sides)]


def _difference(a: str, b: str) -> Node | None:
    left, right = read_formula(a), read_formula(b)
    return ("+", left, ("*", number(-1), right)) if left and right else None


# --- sets of real numbers


@dataclass(frozen=True, slots=True)
class Span:
    """An interval; a single number where both ends are the same and in it."""

    low: Any
    """A Fraction or mpmath's number; None for −∞."""
    has_low: bool
    high: Any
    """None for ∞."""
    has_high: bool


@dataclass(frozen=True, slots=True)
class RealSet:
    spans: tuple[Span, ...]
    """In order, none touching another."""
    name: str = ""
    """Of the variable whose values these are, if it has one."""
    is_plain: bool = False
    """Written (a, b), which may as well be a point."""

    def equals(self, other: RealSet) -> bool:
        return (
            (not (self.name and other.name) or self.name == other.name)
            and len(self.spans) == len(other.spans)
            and all(map(_same_span, self.spans, other.spans))
        )


def read_real_set(text: str) -> RealSet | None:
    """Intervals, finite sets and unions of them; ℝ, also without a finite set; inequalities in one variable."""
    name = ""
    if builder := _BUILDER.fullmatch(text):
        name, text = builder["name"], builder["condition"]
    if member := _MEMBER.fullmatch(text):
        name, text = member["name"], member["set"]
    spans: list[Span] = []
    pieces = re.split(r" ?\\cup ?| or ", text)
    if len(pieces) > 32:
        return None
    for piece in pieces:
        found = _piece(piece.strip())
        if found is None or (found[1] and name and found[1] != name):
            return None
        spans += found[0]
        name = found[1] or name
    parts = read_parts(text)
    plain = parts is not None and parts.brackets == "()" and None not in (spans[0].low, spans[-1].high)
    return RealSet(_merged(spans), name, plain)


def _piece(text: str) -> tuple[list[Span], str] | None:
    if " and " in text:
        return _both(text.split(" and "))
    if text.startswith("\\mathbb"):
        return _reals(text)
    if chain := read_chain(text):
        return _solution(chain)
    parts = read_parts(text)
    if parts is None or not is_enclosed(text):
        return None
    if not parts.brackets:
        values = [constant(node) if (node := read_formula(item)) else None for item in parts.items]
        return None if None in values else ([Span(v, True, v, True) for v in values], "")
    if len(parts.items) != 2:
        return None
    return _interval(*parts.items, parts.brackets[0] == "[", parts.brackets[1] == "]")


def _interval(low: str, high: str, has_low: bool, has_high: bool) -> tuple[list[Span], str] | None:
    a, b = _end(low, -1), _end(high, 1)
    if a is False or b is False or (a is None and has_low) or (b is None and has_high):
        return None
    if a is not None and b is not None and (compare(a, b) > 0 or (near(a, b) and not (has_low and has_high))):
        return None
    return [Span(a, has_low, b, has_high)], ""


def _end(text: str, side: int) -> Any:
    """The value of an end, None for the infinity on its side, False for what is no number."""
    if text.lstrip("+-").strip() == "\\infty":
        return None if text.startswith("-") == (side < 0) else False
    node = read_formula(text)
    value = constant(node) if node else None
    return False if value is None else value


def _is_finite(end: Any) -> bool:
    return end is not None and end is not False


def _reals(text: str) -> tuple[list[Span], str] | None:
    if text == "\\mathbb{R}":
        return [Span(None, False, None, False)], ""
    if match := re.fullmatch(r"\\mathbb\{R\} ?(?:\\setminus|\\backslash|-|\\) ?(\\\{.*\\\})", text):
        found = _piece(match[1])
        return (_without([span.low for span in found[0]]), "") if found else None
    return None


def _without(points: list[Any]) -> list[Span]:
    ends = [None, *sorted(points, key=cmp_to_key(compare)), None]
    return [Span(a, False, b, False) for a, b in pairwise(ends)]


def _solution(chain: Chain) -> tuple[list[Span], str] | None:
    """Of `x > 3`, `3 < x`, `1 ≤ x < 5` or `x ≠ 2`."""
    ascending = _ascending(chain)
    if ascending is None:
        return None
    sides, signs = ascending.sides, ascending.signs
    if signs == ("\\ne",):
        value = _end(sides[1], 1)
        return (_without([value]), sides[0]) if _is_name(sides[0]) and _is_finite(value) else None
    if len(sides) == 3 and _is_name(sides[1]):
        found = _interval(sides[0], sides[2], signs[0] == "\\le", signs[1] == "\\le")
        return (found[0], sides[1]) if found else None
    if len(sides) != 2:
        return None
    for name, value, low in ((sides[0], sides[1], False), (sides[1], sides[0], True)):
        end = _end(value, 1)
        if _is_name(name) and _is_finite(end):
            closed = signs[0] == "\\le"
            return [Span(end, closed, None, False) if low else Span(None, False, end, closed)], name
    return None


def _both(conditions: list[str]) -> tuple[list[Span], str] | None:
    """Of `x > 1 and x < 5`: what inequalities in the same variable share; None where that is nothing."""
    found: list[tuple[list[Span], str]] = []
    for condition in conditions:
        chain = read_chain(condition.strip())
        solution = _solution(chain) if chain else None
        if solution is None or (found and solution[1] != found[0][1]):
            return None
        found.append(solution)
    shared, name = found[0]
    for spans, _ in found[1:]:
        shared = [both for a in shared for b in spans if (both := _overlap(a, b))]
    return (shared, name) if shared else None


def _overlap(a: Span, b: Span) -> Span | None:
    low, has_low = _tighter((a.low, a.has_low), (b.low, b.has_low), 1)
    high, has_high = _tighter((a.high, a.has_high), (b.high, b.has_high), -1)
    if low is not None and high is not None:
        order = compare(low, high)
        if order > 0 or (order == 0 and not (has_low and has_high)):
            return None
    return Span(low, has_low, high, has_high)


def _tighter(a: tuple[Any, bool], b: tuple[Any, bool], side: int) -> tuple[Any, bool]:
    """The larger of two low ends (side 1), the smaller of two high ones (side -1)."""
    if a[0] is None or b[0] is None:
        return b if a[0] is None else a
    order = compare(a[0], b[0]) * side
    return (a[0], a[1] and b[1]) if order == 0 else a if order > 0 else b


def _is_name(text: str) -> bool:
    node = read_formula(text)
    return node is not None and node[0] == "letter"


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in sorted(spans, key=cmp_to_key(_by_low)):
        last = merged[-1] if merged else None
        if last is None or not _touch(last, span):
            merged.append(span)
            continue
        low_closed = last.has_low or (_same_end(last.low, span.low) and span.has_low)
        order = 1 if last.high is None else -1 if span.high is None else compare(last.high, span.high)
        high, closed = (last.high, last.has_high) if order > 0 else (span.high, span.has_high)
        merged[-1] = Span(last.low, low_closed, high, closed or (order == 0 and last.has_high))
    return tuple(merged)


def _touch(a: Span, b: Span) -> bool:
    if a.high is None or b.low is None:
        return True
    order = compare(a.high, b.low)
    return order > 0 or (order == 0 and (a.has_high or b.has_low))


def _by_low(a: Span, b: Span) -> int:
    if a.low is None or b.low is None:
        return (a.low is not None) - (b.low is not None)
    return compare(a.low, b.low) or b.has_low - a.has_low


def _same_end(x: Any, y: Any) -> bool:
    return (x is None) == (y is None) and (x is None or near(x, y))


def _same_span(a: Span, b: Span) -> bool:
    return (a.has_low, a.has_high) == (b.has_low, b.has_high) and _same_end(a.low, b.low) and _same_end(a.high, b.high)
