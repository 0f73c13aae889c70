"""Rewards of leaves: calls the reward functions and settles what each leaf is paid."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from branchwise.algorithm.advantage import overlong_penalty
from branchwise.config import Config, ConfigError, RewardConfig
from branchwise.plugins import load_function
from branchwise.rewards.adapt import NATIVE, Columns, RewardFunction, attempt, attempt_async
from branchwise.tree import Node, Tree

BUILT_IN = ("math", "choice", "format", "length", "box", "point", "trajectory", "count", "reasoning_gym")
OWN = NATIVE | {"original_prompts", "phrasing_index", "thought_index"}
"""Arguments with a value for each leaf that are no columns of the data."""
SHARED = frozenset({"trainer_state", "log_metric", "log_extra"})


class RewardError(ConfigError):
    """A reward function that cannot be used as it is: a mistake in the program, not a failure on some leaf."""


class RewardRunner:
    """Calls reward functions on leaves.

    Functions have TRL's signature, `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, plain or
    async; verl's and verifiers' are told by their parameters. Each is given what it accepts of

    - `prompts` (the phrasing's), `original_prompts` (the question's), `completions` (the response's text; for chat
      prompts a list of one assistant message), `completion_ids`;
    - `thoughts` (the text before the marker) and `answers` (the text after it: '' for an unclosed thought, and the
      whole response where there is no marker); `phrasing_index`, `thought_index`;
    - every column of the data, once for each leaf; and its own `args`;
    - `log_metric(name, value)`, `log_extra(column, values)`, `trainer_state`.

    Args:
        rewards: functions, or configs that name them.
        tokenizer: turns response ids into texts.
        marker: what ends a thought, or None.
        overlong_buffer: DAPO's soft punishment over the last so many tokens before a limit; 0: off.
        limits: the most tokens of a thought, and of a whole response.

    Raises:
        ConfigError: a function that cannot be loaded.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig | Callable[..., Any]],
        tokenizer: Any,
        marker: str | None = None,
        overlong_buffer: int = 0,
        limits: tuple[int, int] = (0, 0),
    ) -> None:
        self.functions = _named([_load(reward) for reward in rewards])
        self.tokenizer = tokenizer
        self.marker = marker
        self.overlong_buffer, self.limits = overlong_buffer, limits
        self.logged: dict[str, list[float]] = {}
        """What functions gave to `log_metric`, by name; whoever writes it down clears it."""

    @classmethod
    def of(cls, reward_funcs: Any, config: Config, tokenizer: Any) -> RewardRunner:
        """For `reward_funcs` as TRL takes them (functions or names, one or a list); None: the config's `rewards`."""
        if reward_funcs is None:
            rewards = config.rewards
        else:
            given = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
            rewards = [RewardConfig(function=f) if isinstance(f, str) else f for f in given]
        whole = config.sampling.max_thought_tokens + config.sampling.max_answer_tokens
        limits = (whole if config.tree.marker is None else config.sampling.max_thought_tokens, whole)
        return cls(rewards, tokenizer, config.tree.marker, config.algorithm.overlong_buffer, limits)

    def check(self, columns: Iterable[str]) -> None:
        """Whether every function can be called on data of these columns.

        Raises:
            RewardError: a function asks for a column that is not there, or for one that Branchwise fills itself.
        """
        columns = set(columns)
        for f in self.functions:
            offered = f.offered(columns | OWN) | SHARED
            if absent := sorted(f.required() - offered):
                raise RewardError(
                    f"rewards: function {f.name!r} needs {', '.join(absent)}; the data's columns are "
                    f"{', '.join(sorted(columns))}, and Branchwise gives {', '.join(sorted(OWN | SHARED))}"
                )
            if not f.takes_any and (unknown := sorted(f.args.keys() - f.parameters.keys())):
                raise RewardError(f"rewards: {f.name!r} takes no {unknown[0]!r}; it takes {', '.join(f.parameters)}")
            if taken := sorted(f.parameters.keys() & columns & OWN):
                raise RewardError(
                    f"rewards: function {f.name!r} asks for {taken[0]!r}, which is a column of the data and also what "
                    "Branchwise calls a part of the response; rename the column"
                )

    def score(self, trees: Iterable[Tree], trainer_state: Any = None) -> None:
        """Fill `reward`, `parts` and `reason` of every leaf that has neither reward nor reason yet.

        R = Σ w·part over the functions that apply to the leaf: those whose part is not None. Where none applies, or
        some function fails or gives no finite number, the reward is missing, and `reason` says why.

        Raises:
            RewardError: a function lacks a column, or returns anything else than one value for each leaf.
        """
        leaves = [(tree, leaf) for tree in trees for leaf in tree.leaves() if _unscored(tree.nodes[leaf])]
        if not leaves:
            return
        nodes = [tree.nodes[leaf] for tree, leaf in leaves]
        columns = self._columns(leaves)
        self.check(name for tree, _ in leaves for name in tree.question.columns)
        shared = {"trainer_state": trainer_state, "log_metric": self._log_metric, "log_extra": _extra_logger(nodes)}
        values = self._call(columns, shared, len(leaves))
        for i, (tree, leaf) in enumerate(leaves):
            lengths = np.cumsum([len(tree.nodes[place].ids_T) for place in tree.path(leaf)[1:]])
            self._settle(nodes[i], [column[i] for column in values], (int(lengths[0]), int(lengths[-1])))

    def _columns(self, leaves: list[tuple[Tree, int]]) -> dict[str, list[Any]]:
        """Arguments with a value for each leaf: the data's columns, and what Branchwise calls its own."""
        paths = [[tree.nodes[place] for place in tree.path(leaf)] for tree, leaf in leaves]
        asked = [tree.question for tree, _ in leaves]
        names = dict.fromkeys(name for question in asked for name in question.columns)
        columns = {name: [question.columns.get(name) for question in asked] for name in names}
        ids = [[int(i) for node in path[1:] for i in node.ids_T] for path in paths]
        prompts = [question.phrasings[path[0].index] for question, path in zip(asked, paths)]
        texts = self._decode(ids)
        thoughts, answers = self._segments(paths, texts)
        return columns | {
            "prompts": prompts,
            "original_prompts": [question.phrasings[0] for question in asked],
            "completions": [
                text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
                for prompt, text in zip(prompts, texts)
            ],
            "completion_ids": ids,
            "thoughts": thoughts,
            "answers": answers,
            "phrasing_index": [path[0].index for path in paths],
            "thought_index": [path[1].index for path in paths],
        }

    def _segments(self, paths: list[list[Node]], texts: list[str]) -> tuple[list[str], list[str]]:
        """The texts before and after the marker. Its last token may reach past it, and may be a special one."""
        if self.marker is None:
            return [""] * len(paths), texts
        firsts = self._decode([path[1].ids_T.tolist() for path in paths])
        seconds = self._decode([[int(i) for node in path[2:] for i in node.ids_T] for path in paths])
        split = [text.partition(self.marker) for text in firsts]
        return [before for before, _, _ in split], [after + second for (_, _, after), second in zip(split, seconds)]

    def _decode(self, ids: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _call(self, columns: Columns, shared: dict[str, Any], count: int) -> list[list[Any]]:
        """What every function gives every leaf, [functions][leaves]: a number, None, or how it failed."""
        started = {
            f.name: self._loop.start(attempt_async(f.call_async(columns, shared))) for f in self.functions if f.is_async
        }
        plain = {f.name: attempt(f.call, columns, shared) for f in self.functions if not f.is_async}
        results = [plain[f.name] if f.name in plain else started[f.name].result() for f in self.functions]
        return [_values(f.name, result, count) for f, result in zip(self.functions, results)]

    @cached_property
    def _loop(self) -> EventLoop:
        return EventLoop()

    def _settle(self, node: Node, values: list[Any], lengths: tuple[int, int]) -> None:
        """Pay one leaf; `lengths` are its thought's and the whole response's."""
        reward, reasons = 0.0, []
        for f, value in zip(self.functions, values):
            part, reason = _part(f.name, value)
            node.parts[f.name] = part
            reward += f.weight * (part or 0.0)
            reasons += [reason] if reason else []
        if not reasons and all(part is None for part in node.parts.values()):
            reasons = ["no reward function applies"]
        if self.overlong_buffer:
            # the worse of both: a thought cut at its own limit is far from the response's
            penalty = min(overlong_penalty(*pair, self.overlong_buffer) for pair in zip(lengths, self.limits))
            node.parts["overlong"] = penalty or None
            reward += penalty
        node.reward, node.reason = (None, "; ".join(reasons)) if reasons else (reward, None)

    def _log_metric(self, name: str, value: float) -> None:
        self.logged.setdefault(name, []).append(float(value))


class EventLoop:
    """A loop in a thread of its own, for async functions: their clients outlive a call; the caller may have a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _unscored(node: Node) -> bool:
    return node.reward is None and node.reason is None


def _load(reward: RewardConfig | Callable[..., Any]) -> RewardFunction:
    if not isinstance(reward, RewardConfig):
        if not callable(reward):
            raise ConfigError(f"rewards: {reward!r} is no function; give one, or a name such as 'math'")
        return RewardFunction(getattr(reward, "__name__", type(reward).__name__), reward)
    spec = reward.function
    if spec in BUILT_IN:
        function = load_function(f"branchwise.rewards.{spec}.{spec}")
    elif spec.isidentifier():
        raise ConfigError(
            f"rewards: there is no built-in {spec!r}; choose one of {', '.join(BUILT_IN)}, or name a function of "
            "yours: 'package.module.function' or 'file.py:function'"
        )
    else:
        function = load_function(spec)
    return RewardFunction(function.__name__, function, reward.weight, reward.args)


def _named(functions: list[RewardFunction]) -> list[RewardFunction]:
    """The same functions; a name that came before gets a number."""
    seen: Counter[str] = Counter()
    named = []
    for f in functions:
        seen[f.name] += 1
        named.append(f if seen[f.name] == 1 else replace(f, name=f"{f.name}_{seen[f.name]}"))
    return named


def _values(name: str, result: Any, count: int) -> list[Any]:
    """One value for each leaf; a failure of the whole call counts for all of them."""
    if isinstance(result, BaseException):
        return [result] * count
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple):
        raise RewardError(f"rewards: function {name!r} returned a {type(result).__name__}; {count} expected, in a list")
    if len(values) != count:
        raise RewardError(
            f"rewards: function {name!r} returned {len(values)} values; {count} expected, one for each response"
        )
    return list(values)


def _part(name: str, value: Any) -> tuple[float | None, str | None]:
    """What a value pays a leaf (None: it does not apply), or why it is missing."""
    if value is None:
        return None, None
    if isinstance(value, BaseException):
        return None, f"{name}: {type(value).__name__}: {value}"
    try:
        part = None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        part = None
    if part is None:
        raise RewardError(f"rewards: function {name!r} returned {value!r} for a response; a number or None is expected")
    return (part, None) if math.isfinite(part) else (None, f"{name}: returned {part}")


def _extra_logger(nodes: list[Node]) -> Callable[[str, Sequence[Any]], None]:
    """What functions call to write a column of their own into the rollout log."""

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if len(values) != len(nodes):
            raise RewardError(f"log_extra: {column!r} has {len(values)} values; {len(nodes)} expected")
        for node, value in zip(nodes, values):
            node.extra[column] = value

    return log_extra
