"""Assert-style tests as jobs for the tests' side: which names are the submission's, and which the tests' own."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

KNOWN = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque"), "collections"),
    **{"Decimal": "decimal", "Fraction": "fractions"},
    **dict.fromkeys(("inf", "isclose", "nan", "pi"), "math"),
}
"""Names that tests use without importing them, and where they come from: never from the submission."""


class BadTests(ValueError):
    """Tests that no submission can be judged by."""


@dataclass
class Suite:
    """Tests, and what they stand on."""

    tests: list[str]
    setup: list[tuple[str, str]] = field(default_factory=list)
    """(What it is, source), trusted, run before the tests on their side."""
    entry_points: list[str] = field(default_factory=list)
    parts: bool = False
    """The single test records its parts by itself."""
    total: int = 0

    def job(self, stop: bool) -> dict[str, Any]:
        """What `inside/assertions.py` is sent; `stop`: the first failure ends it.

        Raises:
            BadTests: the tests are not Python, or use what nobody defines.
        """
        used = _Names()
        for source in [source for _, source in self.setup] + self.tests:
            used.visit(_parse(source))
        unknown = used.unknown() - set(self.entry_points)
        modules = {name for name in unknown - used.plain if name in sys.stdlib_module_names}
        imported = unknown & KNOWN.keys()
        remote = {*self.entry_points, *(unknown - modules - imported)}
        if bare := sorted(unknown - modules - imported - used.plain):
            raise BadTests(f"the tests use attributes of {bare[0]!r}, which nothing defines")
        if not remote:
            remote = set(filter(None, [_called(self.tests[0])]))
        return {
            "remote": sorted(remote),
            "modules": sorted(modules),
            "imported": sorted((name, KNOWN[name]) for name in imported),
            "setup": self.setup,
            "tests": self.tests,
            "parts": self.parts,
            "stop": stop and not self.parts,
        }


def humaneval(prompt: str, test: str, entry_point: str, parts: bool = False) -> Suite:
    """HumanEval's: `test` defines `check(candidate)`; the prompt's helpers are the tests' own."""
    total = 1
    if parts:
        test, total = _recorded(test)
    defined = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in _parse(test).body)
    source = f"{test}\n\ncheck({entry_point})\n" if defined else test
    helpers = runnable(prompt)
    setup = [] if helpers is None else [("prompt", helpers)]
    return Suite([source], setup, [entry_point], parts and total > 1, total)


def runnable(prompt: str) -> str | None:
    """A prompt that can be run: where its function has no body yet, with one; None: it is no Python."""
    return next((text for text in (prompt, f"{prompt}\n    pass\n") if _is_python(text)), None)


def mbpp(test_list: Iterable[str], setup_code: str | None, imports: str | Iterable[str] | None) -> Suite:
    """MBPP's: a list of asserts, and what comes before them."""
    before = imports if isinstance(imports, str) else "\n".join(imports or [])
    setup = [("test_imports", before), ("test_setup_code", setup_code or "")]
    tests = list(test_list)
    if not tests:
        raise BadTests("test_list is empty")
    return Suite(tests, [(kind, source) for kind, source in setup if source.strip()], total=len(tests))


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"the tests are not Python: {error}") from None


def _is_python(source: str) -> bool:
    try:
        _parse(source)
    except BadTests:
        return False
    return True


class _Names(ast.NodeVisitor):
    """Names that are used and bound anywhere in some code."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.bound: set[str] = set()
        self.plain: set[str] = set()
        """Used otherwise than to take an attribute of."""

    def unknown(self) -> set[str]:
        return {name for name in self.loaded - self.bound if not hasattr(builtins, name)}

    def visit_Name(self, node: ast.Name) -> None:
        (self.loaded if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)
        self.plain.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.loaded.add(node.value.id)
        else:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound.add(node.name)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self.bound.add(node.arg)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound.add(node.asname or node.name.partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.bound.add(node.name or "")
        self.generic_visit(node)


def _called(test: str) -> str | None:
    """The function under test where it goes by a built-in's name: the innermost call on the left, or else the right."""
    node: Any = _parse(test).body[0]
    node = node.test if isinstance(node, ast.Assert) else getattr(node, "value", None)
    sides = [node, *node.comparators] if isinstance(node, ast.Compare) else [node]
    return next(filter(None, map(_innermost, sides)), None)


def _innermost(node: Any) -> str | None:
    """The innermost call's name, following first arguments and left sides."""
    name = None
    while node is not None:
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else name
            node = node.args[0] if node.args else None
        else:
            node = getattr(node, "left", getattr(node, "operand", None))
    return name


def _recorded(test: str) -> tuple[str, int]:
    """The test with each statement of `check` that asserts something reporting on its own, and their number."""
    tree = _parse(test)
    count = 0
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name != "check":
            continue
        for place, statement in enumerate(node.body):
            nested = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if nested or not any(isinstance(inner, ast.Assert) for inner in ast.walk(statement)):
                continue
            wrapped = ast.parse("try:\n    _record(True)\nexcept Exception:\n    _record(False)").body[0]
            assert isinstance(wrapped, ast.Try)
            wrapped.body.insert(0, statement)
            node.body[place] = wrapped
            count += 1
    return (ast.unparse(ast.fix_missing_locations(tree)), count) if count > 1 else (test, 1)
