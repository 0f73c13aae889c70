"""A reader of formulas in LaTeX or plain notation.

It takes what has one meaning and refuses all else, so that nothing is compared that was misread. Letters stand alone
(`xy` is x·y), `i` is the imaginary unit and `e` Euler's number, `3\\frac14` is a mixed number, `1/2x` and `\\sin x/2`
are refused as ambiguous. Nothing is ever run: a formula becomes nested tuples, `(operator, operands…)`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from branchwise.rewards.mathematics import words

Node = tuple[Any, ...]

LONGEST = 250
"""Tokens; longer formulas are refused."""
_DEEPEST = 40

_TOKEN = re.compile(
    r"\s+|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+|\\[{}|])|(?P<letters>[A-Za-z]+)|(?P<sign>\*\*|[-+*/^_()\[\]{}|!])"
)
_DATE = re.compile(r"\d{4}([-/])\d\d?\1\d\d?|\d\d?([-/])\d\d?\2\d{4}")
_CAPITALS = re.compile("[A-Z]{2,}|[A-Z][a-z]{2,}")
"""An order or a name: ABC is not BAC."""
_FUNCTIONS = {
    name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "ln", "log", "exp")
} | {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos", "atan": "atan", "lg": "lg",
}  # fmt: skip
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_GREEK = frozenset(
    words(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
        "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell"
    )
)
_WORDS = frozenset(
    words(
        "no all and any are but day eve fri few for had has her him his how its low man max men min mod mon new nil "
        "nor not now odd off old one our out own red sad sat say set sun the ten too top try tue two was wed way why "
        "win who yes yet you six gcd lcm lim sup inf det dim ker sum"
    )
)
"""Short runs of letters that are no products of variables; all longer runs are words."""
_ENDS = {")": "(", "]": "[", "}": "{"}


class Unreadable(ValueError):
    """No formula, or one of unclear meaning."""


@lru_cache(maxsize=4096)
def read_formula(text: str) -> Node | None:
    """The formula that a normalised text is; None where it is none, or is unclear."""
    try:
        return _Reader(_tokens(text)).whole()
    except Unreadable:
        return None


def letters(node: Node) -> frozenset[str]:
    """The variables in a formula."""
    if node[0] == "letter":
        return frozenset((node[1],))
    return frozenset().union(*(letters(part) for part in node[1:] if isinstance(part, tuple)))


def number(value: int | Fraction) -> Node:
    return ("number", Fraction(value))


def _tokens(text: str) -> list[str]:
    if _DATE.fullmatch(text) or _CAPITALS.fullmatch(text):
        raise Unreadable(text)
    tokens: list[str] = []
    place = brackets = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(tokens) > LONGEST:
            raise Unreadable(text)
        place = match.end()
        brackets += match[0] in ("(", "[")
        brackets -= match[0] in (")", "]")
        if brackets and "," in match[0]:
            raise Unreadable("(1,234) is a pair")
        if match["letters"]:
            tokens += _words(match["letters"])
        elif match.lastgroup:
            tokens.append("^" if match[0] == "**" else match[0])
    return tokens


def _words(run: str) -> list[str]:
    """A run of letters: a function with its argument's letters, or letters that stand for themselves."""
    for name in ("sqrt", "pi", "abs", *sorted(_FUNCTIONS, key=len, reverse=True)):
        if run.startswith(name) and len(run) <= len(name) + (2 if name in _FUNCTIONS else 0):
            return ["\\" + name, *run[len(name) :]]
    if len(run) > 3 or run.lower() in _WORDS:
        raise Unreadable(run)
    if len(run) > 1 and run.endswith("pi"):
        return [*run[:-2], "\\pi"]
    return list(run)


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place, self.depth, self.bars = tokens, 0, 0, 0

    def whole(self) -> Node:
        node = self.sum()
        if self.place < len(self.tokens):
            raise Unreadable(self.peek())
        return node

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        token = self.peek()
        if not token or (expected and token not in expected):
            raise Unreadable(token)
        self.place += 1
        return token

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Unreadable("too deep")
        node = self.product()
        while self.peek() in ("+", "-"):
            sign = self.take()
            right = self.product()
            node = ("+", node, right if sign == "+" else ("*", number(-1), right))
        self.depth -= 1
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            token = self.peek()
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                node = ("*", node, self.signed())
            elif token in ("/", "\\div"):
                self.take()
                node = ("/", node, self.signed())
                if self.starts_factor():
                    raise Unreadable("1/2x is (1/2)x or 1/(2x)")
            elif self.starts_factor():
                if re.match(r"[\d.]", token) and self.tokens[self.place - 1] != ")":
                    raise Unreadable("a number right after a factor")
                node = ("*", node, self.power())
            else:
                return node

    def starts_factor(self) -> bool:
        token = self.peek()
        if token == "|":
            return not self.bars
        return bool(token) and token not in {
            *"+-*/^_!)]}", "\\cdot", "\\times", "\\div", "\\}", "\\rfloor", "\\rceil",
        }  # fmt: skip

    def signed(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
            if self.peek() in ("+", "-"):
                raise Unreadable("two signs")
        node = self.power()
        return ("*", number(-1), node) if negative else node

    def power(self) -> Node:
        node = self.postfix(self.atom())
        if self.peek() != "^":
            return node
        self.take()
        node = ("^", node, self.exponent())
        if self.peek() in ("^", "!"):
            raise Unreadable("a second exponent")
        return node

    def exponent(self) -> Node:
        if self.peek() in ("+", "-"):
            sign = self.take()
            node = self.atom()
            return node if sign == "+" else ("*", number(-1), node)
        node = self.atom()
        return ("^", node, self.exponent()) if self.peek() == "^" and self.take() else node

    def postfix(self, node: Node) -> Node:
        if self.peek() == "!":
            self.take()
            node = ("factorial", node)
            if self.peek() == "!":
                raise Unreadable("a double factorial")
        if self.peek() == "\\degree":
            self.take()
            node = ("degree", node)
        return node

    def group(self, opening: str, closing: str) -> Node:
        """What is in brackets; bars around them are of another level."""
        bars, self.bars = self.bars, 0
        self.take(opening)
        node = self.sum()
        self.take(closing)
        self.bars = bars
        return node

    def argument(self) -> Node:
        """Of a command: a group in braces, or one digit or letter."""
        token = self.peek()
        if token == "{":
            return self.group("{", "}")
        if re.fullmatch(r"\d|[A-Za-z]|\\pi", token):
            return self.atom()
        raise Unreadable(token)

    def atom(self) -> Node:
        token = self.peek()
        if re.match(r"[\d.]", token):
            return self.number_or_mixed()
        if token in ("(", "[", "{"):
            return self.group(token, next(end for end, start in _ENDS.items() if start == token))
        if token in ("|", "\\|"):
            return self.absolute()
        if token.startswith("\\"):
            return self.command()
        if re.fullmatch("[A-Za-z]", token):
            return self.letter()
        raise Unreadable(token)

    def number_or_mixed(self) -> Node:
        token = self.take()
        value = Fraction(token.replace(",", ""))
        if self.peek() == "\\frac" and token.isdigit():
            mixed = re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", "".join(self.tokens[self.place : self.place + 7]))
            if mixed:
                top, bottom = int(mixed[1]), int(mixed[2])
                if top >= bottom:
                    raise Unreadable("no mixed number, and as a product unusual")
                self.place += 7
                return number(value + Fraction(top, bottom))
        return number(value)

    def absolute(self) -> Node:
        bar = self.take()
        self.bars += 1
        node = self.sum()
        self.take(bar)
        self.bars -= 1
        return ("abs", node)

    def letter(self) -> Node:
        name = self.take()
        if self.peek() == "_":
            return ("letter", name + self.subscript())
        if name in "fgh" and self.peek() == "(":
            raise Unreadable("a function of unknown meaning")
        if name == "i":
            return ("i",)
        return ("e",) if name == "e" else ("letter", name)

    def subscript(self) -> str:
        self.take("_")
        if self.peek() != "{":
            return "_" + self.take()
        start = self.place
        while self.take() != "}":
            pass
        return "_" + "".join(self.tokens[start + 1 : self.place - 1])

    def command(self) -> Node:
        name = self.take()[1:]
        if name in _FUNCTIONS:
            return self.function(_FUNCTIONS[name])
        if name == "frac":
            return ("/", self.argument(), self.argument())
        if name in ("binom", "dbinom", "tbinom"):
            return ("binomial", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "abs":
            return ("abs", self.group("(", ")"))
        if name == "pi":
            return ("pi",)
        if name in ("lfloor", "lceil"):
            self.place -= 1
            return (name[1:], self.group("\\" + name, "\\r" + name[1:]))
        if name in _GREEK:
            return ("letter", "\\" + name + (self.subscript() if self.peek() == "_" else ""))
        raise Unreadable(name)

    def root(self) -> Node:
        if self.peek() == "[":
            degree = self.group("[", "]")
            return ("root", degree, self.argument())
        if self.peek() == "(":
            return ("root", number(2), self.group("(", ")"))
        return ("root", number(2), self.argument())

    def function(self, name: str) -> Node:
        """`\\sin^2 2x`, `\\log_2 8`, `ln(5)`: an argument without brackets is the product that follows."""
        base = power = None
        if name == "log" and self.peek() == "_":
            self.take()
            base = self.exponent()
        if self.peek() == "^":
            self.take()
            power = self.exponent()
        if power == ("*", number(-1), number(1)):
            if name not in _INVERSES:
                raise Unreadable("an inverse of unclear meaning")
            name, power = _INVERSES[name], None
        argument = self.atom() if self.peek() in ("(", "{", "[") else self.bare_argument()
        node: Node = (name, argument) if base is None else ("/", ("ln", argument), ("ln", base))
        return node if power is None else ("^", node, power)

    def bare_argument(self) -> Node:
        node = self.power()
        while self.starts_factor() and self.peek()[1:] not in _FUNCTIONS and self.peek() not in ("(", "["):
            if re.match(r"[\d.]", self.peek()):
                raise Unreadable("a number right after a factor")
            node = ("*", node, self.power())
        if self.peek() in ("/", "\\div", "(", "["):
            raise Unreadable("sin x/2 is sin(x/2) or (sin x)/2")
        return node
