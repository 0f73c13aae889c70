"""Reward functions as they come: what each is called with, by the names of its parameters.

- TRL's signature is the native one: `f(prompts, completions, completion_ids, **columns) -> list`, all leaves at a time.
- verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`: a leaf at a time; it returns a number, or
  a mapping with `score`.
- verifiers': any of `prompt, completion, answer, state, task, info, parser`, a leaf at a time; it returns a number.
"""

from __future__ import annotations

import asyncio
import inspect
import math
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
    spec: str | None = None
    """Its name for `load_function`, where another process can load it."""
    timeout: float = 600.0
    """Seconds that a call may take."""
    by_rows: bool = False
    """Whether it judges each leaf by itself, so that a batch may be cut into pieces."""
    ready: Callable[..., None] | None = None
    """Raises where the function cannot do its work here; takes the function's `args`."""

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

    @property
    def rows(self) -> int | None:
        """Leaves of one call; None: all."""
        return 1 if self._leaf_view else PIECE if self.by_rows else None

    def wanted(self, columns: Columns) -> Columns:
        """The columns that a call cannot do without."""
        if self._leaf_view or self.takes_any:
            return columns
        return {name: values for name, values in columns.items() if name in self.parameters}

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
            return await self._in_time(self.function(**self._accepted({**columns, **shared})))
        calls = [self._in_time(self.function(**leaf)) for leaf in self._leaves(columns, shared)]
        return [_score(result) for result in await asyncio.gather(*map(attempt_async, calls))]

    async def _in_time(self, awaitable: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await awaitable
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"stopped after {self.timeout:g} s") from None
            raise

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


TOLD = 500
"""Characters of a value or an error that a reason quotes."""
PIECE = 32
"""Leaves of one call of a function that judges each by itself."""


@dataclass(frozen=True)
class Call:
    """One call of a reward function, as it is sent to another process."""

    spec: str
    name: str
    args: Mapping[str, Any]
    columns: Columns
    trainer_state: Any
    count: int
    timeout: float


@dataclass
class Answer:
    """What one call came to."""

    parts: list[tuple[float | None, str | None]]
    """For each leaf what it is paid (None: the function does not apply), or why that is missing."""
    metrics: list[tuple[str, float]] = field(default_factory=list)
    extras: list[tuple[str, list[Any]]] = field(default_factory=list)
    """What the function gave to `log_metric` and `log_extra`."""
    failure: str | None = None
    """Why the whole call failed, where there are no `parts`."""
    unloadable: str | None = None
    """Why the worker cannot load the function."""

    def told(self, count: int) -> list[tuple[float | None, str | None]]:
        """`parts`, or the failure for each of them."""
        return self.parts if self.failure is None else [(None, self.failure)] * count


def answer(f: RewardFunction, columns: Columns, trainer_state: Any, count: int) -> Answer:
    """Call a plain function on `count` leaves."""
    answered = Answer([])
    answered.parts = parts(attempt(f.call, columns, shared(answered, trainer_state, count)), count)
    return answered


async def answer_async(f: RewardFunction, columns: Columns, trainer_state: Any, count: int) -> Answer:
    """The same of an async function; at its time limit it is stopped where it waits."""
    answered = Answer([])
    call = f.call_async(columns, shared(answered, trainer_state, count))
    answered.parts = parts(await attempt_async(call), count)
    return answered


def shared(answered: Answer, trainer_state: Any, count: int) -> dict[str, Any]:
    """Arguments that are the same for all leaves."""

    def log_metric(name: str, value: float) -> None:
        answered.metrics.append((name, float(value)))

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if len(values) != count:
            raise ValueError(f"log_extra: {column!r} has {len(values)} values; {count} expected")
        answered.extras.append((column, list(values)))

    return {"trainer_state": trainer_state, "log_metric": log_metric, "log_extra": log_extra}


def parts(result: Any, count: int) -> list[tuple[float | None, str | None]]:
    """What a function's result pays each leaf, or why that is missing; a failure of the call counts for all of them."""
    values = attempt(lambda: result.tolist() if hasattr(result, "tolist") else result)
    if isinstance(values, BaseException):
        return [_part(values)] * count
    if not isinstance(values, list | tuple):
        return [(None, f"returned a {type(result).__name__}; {count} expected, in a list")] * count
    if len(values) != count:
        return [(None, f"returned {len(values)} values; {count} expected, one for each response")] * count
    return list(map(_part, values))


def _part(value: Any) -> tuple[float | None, str | None]:
    if value is None:
        return None, None
    if isinstance(value, BaseException):
        return None, f"{type(value).__name__}: {_told(str, value)}"
    number = None if isinstance(value, str | bytes) else attempt(float, value)
    if not isinstance(number, float):
        return None, f"returned {_told(repr, value)}; a number or None is expected"
    return (number, None) if math.isfinite(number) else (None, f"returned {number}")


def _told(how: Callable[[Any], str], value: Any) -> str:
    """A value's text for a reason: not too long, and whatever its class makes of it."""
    text = attempt(how, value)
    if not isinstance(text, str):
        return f"a {type(value).__name__}"
    return text if len(text) <= TOLD else f"{text[:TOLD]}…"


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
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) and task.cancelling():  # from outside
            raise
        return error
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
