"""Whether two formulas have the same value: exactly where it is rational, else to a hundred digits.

Formulas with letters are compared at random points, where those that differ, differ. Letters stand for real numbers.
Where the reference is real at some points and not at others, it is compared on its own domain alone: sqrt(1/k) is
1/sqrt(k), but sqrt(x^2) is not x. All work is bounded, by the sizes of numbers and by `SECONDS`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

from branchwise.rewards.mathematics.formula import TRIGONOMETRIC, Node, letters, number

SECONDS = 0.5
"""Of wall-clock time for one answer; what is not done by then is unequal."""
_BITS = 20_000
"""Of exact numbers; larger ones are rounded."""
_LARGEST_LOGARITHM = 100_000.0
"""Of numbers; larger ones are refused."""
_DIGITS, _MORE_DIGITS = 150, 400
_EPSILON = Fraction(1, 10**100)
_LOG_BASE = Fraction(71, 29)
"""Some value for the natural logarithm of the base of `\\log`, which differs by field: equal whatever it is."""


_local = threading.local()


@contextmanager
def within_limit() -> Iterator[None]:
    """This thread has `SECONDS` for what it works out within."""
    _local.deadline = time.monotonic() + SECONDS
    try:
        yield
    finally:
        del _local.deadline


def _deadline() -> float:
    return getattr(_local, "deadline", math.inf)


class Undefined(ArithmeticError):
    """A formula without a value here, or with one too large to work out."""


def same_value(a: Node, b: Node) -> bool:
    """Whether a reference and an answer are equal, as functions of their letters."""
    try:
        return a == b or all(near(*pair) for pair in _compared(a, b))
    except ArithmeticError:
        return False


def same_up_to_factor(a: Node, b: Node, positive: bool) -> bool:
    """Whether a formula is another one times a constant, which may have to be positive: as in equations `a = 0`."""
    try:
        pairs = list(_values(a, b))
        (top, bottom), *others = [(x, y) for x, y in pairs if not near(y, Fraction(0))]
        if not others or len(others) + 1 < len(pairs) or near(top, Fraction(0)):
            return False
        factor = _divide(top, bottom, _Evaluation(_DIGITS, {}))
        if positive and not (_is_real(factor) and factor > 0):
            return False
        return all(near(_multiply(top, y), _multiply(x, bottom)) for x, y in others)
    except (ArithmeticError, ValueError):
        return False


def constant(node: Node) -> Any:
    """The real value of a formula without letters, as a Fraction where it is rational; None where there is none."""
    try:
        value = None if letters(node) else _Evaluation(_DIGITS, {}).of(node)
    except ArithmeticError:
        return None
    return value if value is not None and _is_real(value) else None


def near(x: Any, y: Any) -> bool:
    """Rational numbers are near only if equal."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    context = _context(_DIGITS)
    x, y = _float(x, context), _float(y, context)
    return bool(abs(x - y) <= max(abs(x), abs(y)) * _float(_EPSILON, context))


def compare(x: Any, y: Any) -> int:
    """-1, 0 or 1 as one real value is less than, near or greater than another."""
    if near(x, y):
        return 0
    context = _context(_DIGITS)
    return -1 if _float(x, context) < _float(y, context) else 1


def _compared(a: Node, b: Node) -> Iterator[tuple[Any, Any]]:
    """Pairs of values; one unequal pair is enough. With tiny values more digits tell whether they are zeros."""
    pairs = list(_values(a, b))
    real = [pair for pair in pairs if _is_real(pair[0])]
    for x, y in real if len(real) >= 2 else pairs:
        yield (x, y) if near(x, y) or not _tiny(x, y) else _sharper(a, b)


def _tiny(x: Any, y: Any) -> bool:
    context = _context(_DIGITS)
    return all(abs(_float(value, context)) < _float(_EPSILON, context) for value in (x, y))


def _sharper(a: Node, b: Node) -> tuple[Any, Any]:
    """The difference of two formulas and 0: it is a rounding error if it falls with the digits."""
    if letters(a) | letters(b):
        return Fraction(0), Fraction(1)
    difference = ("+", a, ("*", number(-1), b))
    rough, fine = (
        _float(_Evaluation(digits, {}).of(difference), _context(digits)) for digits in (_DIGITS, _MORE_DIGITS)
    )
    return Fraction(int(abs(fine) > abs(rough) * _float(_EPSILON, _context(_DIGITS)))), Fraction(0)


def _values(a: Node, b: Node) -> Iterator[tuple[Any, Any]]:
    """Values of both at eight points, half of them positive; of constants, once."""
    names = sorted(letters(a) | letters(b))
    for point in _points(tuple(names)):
        evaluation = _Evaluation(_DIGITS, point)
        yield evaluation.of(a), evaluation.of(b)


@lru_cache(maxsize=256)
def _points(names: tuple[str, ...]) -> list[dict[str, Fraction]]:
    if not names:
        return [{}]
    draw = random.Random(0)

    def point(scale: int, signs: tuple[int, ...]) -> dict[str, Fraction]:
        return {name: draw.choice(signs) * Fraction(draw.randint(7, 96) * scale, 97) for name in names}

    return [point(scale, signs) for signs in ((1,), (1, -1)) for scale in (1, 1, 3, 7)]


class _Evaluation:
    """Works out formulas at one point; numbers are Fractions while they can be, else mpmath's."""

    def __init__(self, digits: int, point: Mapping[str, Fraction]) -> None:
        self.context, self.point = _context(digits), point
        self.deadline = _deadline()
        self.radians = False

    def of(self, node: Node) -> Any:
        if time.monotonic() > self.deadline:
            raise Undefined("out of time")
        kind = node[0]
        if kind == "number":
            return node[1]
        if kind == "letter":
            return self.point[node[1]]
        if kind in ("pi", "e", "i"):
            return {"pi": +self.context.pi, "e": +self.context.e, "i": self.context.j}[kind]
        if kind in TRIGONOMETRIC:
            outside, self.radians = self.radians, True
            value = self.of(node[1])
            self.radians = outside
            return self.function(kind, value)
        return self.bounded(self.operate(kind, [self.of(part) for part in node[1:]]))

    def operate(self, kind: str, values: list[Any]) -> Any:
        x, y = values[0], values[-1]
        if kind == "+":
            return x + y if _alike(x, y) else self.float(x) + self.float(y)
        if kind == "*":
            return x * y if _alike(x, y) else self.float(x) * self.float(y)
        if kind == "/":
            return _divide(x, y, self)
        if kind == "^":
            return self.power(x, y)
        if kind == "root":
            return self.power(y, _divide(Fraction(1), x, self))
        if kind == "degree":
            return self.float(x) * self.context.pi / 180 if self.radians else x
        if kind == "abs":
            return abs(x)
        if kind in ("floor", "ceil"):
            return self.floor(x) if kind == "floor" else -self.floor(-x)
        if kind == "factorial":
            return self.factorial(x)
        if kind == "binomial":
            return self.binomial(x, y)
        return self.function(kind, x)

    def power(self, x: Any, y: Any) -> Any:
        if x == 0:
            if not (_is_real(y) and y > 0):
                raise Undefined("a power of 0")
            return Fraction(0)
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            exact = _exact_power(x, y)
            if exact is not None:
                return exact
            if x < 0 and y.denominator % 2:  # the real root
                return self.power(-x, y) * (-1 if y.numerator % 2 else 1)
        x, y = self.float(x), self.float(y)
        if isinstance(y, Fraction) or abs(y) * abs(self.context.log(abs(x))) > _LARGEST_LOGARITHM:
            raise Undefined("too large")
        return self.context.power(x, y)

    def floor(self, x: Any) -> Fraction:
        if not _is_real(x):
            raise Undefined("the floor of a complex number")
        return Fraction(math.floor(x) if isinstance(x, Fraction) else int(self.context.floor(x)))

    def factorial(self, x: Any) -> Any:
        if isinstance(x, Fraction) and x.denominator == 1:
            if not 0 <= x <= 1500:
                raise Undefined("a factorial")
            return Fraction(math.factorial(int(x)))
        if abs(x) > 1000:
            raise Undefined("a factorial")
        return self.context.factorial(self.float(x))

    def binomial(self, n: Any, k: Any) -> Any:
        if abs(n) > 1500 or abs(k) > 1500:
            raise Undefined("a binomial")
        if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1 and 0 <= k <= n:
            return Fraction(math.comb(int(n), int(k)))
        return self.context.binomial(self.float(n), self.float(k))

    def function(self, kind: str, x: Any) -> Any:
        limit = 10_000 if kind in ("exp", "sinh", "cosh", "tanh") else 10**30
        if abs(x) > limit:
            raise Undefined("too large")
        if kind in ("ln", "log", "lg"):
            if x == 0:
                raise Undefined("log 0")
            base = {"ln": 1, "log": self.float(_LOG_BASE), "lg": self.context.log(10)}[kind]
            return self.exact_zero(self.context.log(self.float(x)) / base, x == 1)
        if kind in ("cot", "csc") and x == 0:
            raise Undefined(kind)
        return getattr(self.context, kind)(self.float(x))

    @staticmethod
    def exact_zero(value: Any, zero: bool) -> Any:
        return Fraction(0) if zero else value

    def bounded(self, value: Any) -> Any:
        """The same value; rounded where it has too many digits."""
        if isinstance(value, Fraction):
            if value.numerator.bit_length() + value.denominator.bit_length() > _BITS:
                return self.float(value)
            return value
        if not self.context.isfinite(value):
            raise Undefined("not finite")
        if isinstance(value, self.context.mpc) and abs(value.imag) <= abs(value.real) * self.context.eps * 1000:
            return value.real
        return value

    def float(self, x: Any) -> Any:
        return _float(x, self.context)


def _exact_power(x: Fraction, y: Fraction) -> Fraction | None:
    """A rational power of a rational number where it is rational and not too long; else None."""
    if y.denominator == 1:
        bits = max(x.numerator.bit_length(), x.denominator.bit_length())
        return x ** int(y) if abs(y) * bits <= _BITS or abs(x) == 1 else None
    if x > 0 and y.denominator == 2 and abs(y) <= 50 and max(x.numerator, x.denominator).bit_length() <= 200:
        top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
        if top * top == x.numerator and bottom * bottom == x.denominator:
            return Fraction(top, bottom) ** y.numerator
    return None


def _divide(x: Any, y: Any, evaluation: _Evaluation) -> Any:
    if y == 0:
        raise Undefined("division by 0")
    return x / y if _alike(x, y) else evaluation.float(x) / evaluation.float(y)


def _multiply(x: Any, y: Any) -> Any:
    context = _context(_DIGITS)
    return x * y if _alike(x, y) else _float(x, context) * _float(y, context)


def _alike(x: Any, y: Any) -> bool:
    return isinstance(x, Fraction) == isinstance(y, Fraction)


def _is_real(x: Any) -> bool:
    return isinstance(x, Fraction) or not getattr(x, "imag", 0)


def _float(x: Any, context: Any) -> Any:
    return context.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else context.convert(x)


def _context(digits: int) -> Any:
    """A thread's own mpmath context: the common one's precision is anybody's to change."""
    found = _local.__dict__.setdefault("by_digits", {})
    if digits not in found:
        from mpmath.ctx_mp import MPContext

        found[digits] = MPContext()
        found[digits].dps = digits
    return found[digits]
