"""Reward functions as they come: what each is called with, by the names of its parameters.

- TRL's signature is the native one: `f(prompts, completions, completion_ids, **columns) -> list`, all leaves at a time.
- verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`: a leaf at a time; it returns a number, or
  a mapping with `score`.
- verifiers': any of `prompt, completion, answer, state, task, info, parser`, a leaf at a time; it returns a number.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

VERIFIERS = frozenset({"prompt", "completion", "state", "parser"})
NATIVE = frozenset({"prompts", "completions", "completion_ids", "thoughts", "answers"})

Columns = Mapping[str, Sequence[Any]]
"""Arguments with a value for each leaf."""


@dataclass(frozen=True)
class RewardFunction:
    """One reward function with its weight and what it is called with."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)
    """Given to every call."""

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.function).parameters)

    @cached_property
    def takes_any(self) -> bool:
        """Whether it has `**kwargs`."""
        return any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())

    @cached_property
    def is_async(self) -> bool:
        return any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__)))

    @cached_property
    def _leaf_view(self) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
        """For functions that take a leaf at a time, what they call a leaf's columns."""
        if "solution_str" in self.parameters:
            return _verl
        if VERIFIERS & self.parameters.keys() and not NATIVE & self.parameters.keys():
            return _verifiers
        return None

    def offered(self, names: set[str]) -> set[str]:
        """All that the function may ask for where these columns are there."""
        view = self._leaf_view
        return {*self.args, *(view(dict.fromkeys(names)) if view else names)}

    def required(self) -> set[str]:
        """Parameters without which it cannot be called."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {name for name, p in self.parameters.items() if p.default is p.empty and p.kind in named}

    def call(self, columns: Columns, shared: Mapping[str, Any]) -> Any:
        """What a plain function returns; where it takes a leaf at a time, a list with failures in their places."""
        if self._leaf_view is None:
            return self.function(**self._accepted({**columns, **shared}))
        return [_score(attempt(self.function, **leaf)) for leaf in self._leaves(columns, shared)]

    async def call_async(self, columns: Columns, shared: Mapping[str, Any]) -> Any:
        """The same of an async function; leaves are awaited together."""
        if self._leaf_view is None:
            return await self.function(**self._accepted({**columns, **shared}))
        calls = [self.function(**leaf) for leaf in self._leaves(columns, shared)]
        return [_score(result) for result in await asyncio.gather(*map(attempt_async, calls))]

    def _leaves(self, columns: Columns, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The arguments of each leaf's call."""
        view = self._leaf_view or dict
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        return [self._accepted({**view(row), **shared}) for row in rows]

    def _accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**arguments, **self.args}
        if self.takes_any:
            return arguments
        return {name: arguments[name] for name in self.parameters if name in arguments}


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, or the exception it fails with; exits and timeouts that are no `Exception` too."""
    try:
        return function(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error


async def attempt_async(awaitable: Awaitable[Any]) -> Any:
    """The same of an awaitable."""
    try:
        return await awaitable
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        return error


def _score(result: Any) -> Any:
    """verl's functions may return a mapping with their score."""
    return result["score"] if isinstance(result, Mapping) and "score" in result else result


def _verl(leaf: Mapping[str, Any]) -> dict[str, Any]:
    view = {"data_source": None, "extra_info": None, **leaf, "solution_str": _text(leaf["completions"])}
    return {**view, "ground_truth": leaf["answer"]} if "answer" in leaf else view


def _verifiers(leaf: Mapping[str, Any]) -> dict[str, Any]:
    view = {"answer": "", "info": {}, "task": "default", **leaf}
    view |= {"prompt": leaf["prompts"], "completion": leaf["completions"]}
    state = {name: view[name] for name in ("prompt", "completion", "answer", "info", "task")}
    parser = SimpleNamespace(parse_answer=lambda completion: leaf["answers"], parse=lambda text: leaf["answers"])
    return {**view, "state": state, "parser": parser}


def _text(completion: Any) -> Any:
    return completion[0]["content"] if isinstance(completion, list) else completion
