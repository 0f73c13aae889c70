"""Rewards of leaves: has the reward functions called and settles what each leaf is paid."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from branchwise.algorithm.advantage import overlong_penalty
from branchwise.config import Config, ConfigError, RewardConfig, RewardLimits
from branchwise.errors import nearest
from branchwise.plugins import load_function, spec_of
from branchwise.rewards.adapt import NATIVE, RewardFunction
from branchwise.rewards.calls import Caller
from branchwise.tree import Node, Tree

BUILT_IN = ("math", "code", "choice", "format", "length", "box", "point", "trajectory", "count", "reasoning_gym")
OWN = NATIVE | {"original_prompts", "phrasing_index", "thought_index"}
"""Arguments with a value for each leaf that are no columns of the data."""
SHARED = frozenset({"trainer_state", "log_metric", "log_extra"})
NOT_APPLICABLE = "no reward function applies"
MEMORY = 512
"""Responses over which the share of failures is taken: beyond, older ones count half."""


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
        lengths: the most tokens of a thought, and of a whole response.
        limits: on their time, and on failures.

    Plain functions run in worker processes, where they can be stopped; see `branchwise.rewards.calls`.

    Raises:
        ConfigError: a function that cannot be loaded.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig | Callable[..., Any]],
        tokenizer: Any,
        marker: str | None = None,
        overlong_buffer: int = 0,
        lengths: tuple[int, int] = (0, 0),
        limits: RewardLimits | None = None,
    ) -> None:
        self.limits = limits or RewardLimits()
        self.functions = _named([_load(reward, self.limits.timeout) for reward in rewards])
        self.tokenizer = tokenizer
        self.marker = marker
        self.overlong_buffer, self.lengths = overlong_buffer, lengths
        self.caller = Caller(self.limits.workers)
        self.logged: dict[str, list[float]] = {}
        """What functions gave to `log_metric`, by name; whoever writes it down clears it."""
        self._failed = self._scored = 0

    @classmethod
    def of(cls, reward_funcs: Any, config: Config, tokenizer: Any) -> RewardRunner:
        """For `reward_funcs` as TRL takes them (functions or names, one or a list); None: the config's `rewards`."""
        if reward_funcs is None:
            rewards = config.rewards
        else:
            given = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
            rewards = [RewardConfig(function=f) if isinstance(f, str) else f for f in given]
        whole = config.sampling.max_thought_tokens + config.sampling.max_answer_tokens
        lengths = (whole if config.tree.marker is None else config.sampling.max_thought_tokens, whole)
        return cls(
            rewards, tokenizer, config.tree.marker, config.algorithm.overlong_buffer, lengths, config.reward_limits
        )

    @property
    def notes(self) -> list[str]:
        """What is worth saying of how the functions run."""
        return [
            f"warning: rewards: {f.name!r} runs in a thread of the trainer: a call that takes longer than "
            f"{f.timeout:g} s is given up but cannot be stopped. Name it in a file of its own "
            "('my_rewards.py:my_function'), and it runs in a process that can"
            for f in self.functions
            if f.spec is None and not f.is_async
        ]

    def start(self) -> None:
        """Start a worker, so that it is there when the first rewards are asked for."""
        if any(f.spec and not f.is_async for f in self.functions):
            self.caller.pool.warm()

    def close(self) -> None:
        """End the worker processes."""
        self.caller.pool.close()

    def check(self, columns: Iterable[str]) -> None:
        """Whether every function can be called on data of these columns.

        Raises:
            RewardError: a function asks for a column that is not there, or for one that Branchwise fills itself.
            ConfigError: a built-in cannot do its work here.
        """
        columns = set(columns)
        for f in self.functions:
            offered = f.offered(columns | OWN) | SHARED
            if absent := sorted(f.required() - offered):
                raise RewardError(
                    f"rewards: function {f.name!r} needs {', '.join(absent)}; the data's columns are "
                    f"{', '.join(sorted(columns))}, and Branchwise gives {', '.join(sorted(OWN | SHARED))}"
                    f"{nearest(absent, columns)}"
                )
            if not f.takes_any and (unknown := sorted(f.args.keys() - f.parameters.keys())):
                raise RewardError(f"rewards: {f.name!r} takes no {unknown[0]!r}; it takes {', '.join(f.parameters)}")
            if taken := sorted(f.parameters.keys() & columns & OWN):
                raise RewardError(
                    f"rewards: function {f.name!r} asks for {taken[0]!r}, which is a column of the data and also what "
                    "Branchwise calls a part of the response; rename the column"
                )
            if f.ready:
                f.ready(**f.args)

    def score(self, trees: Iterable[Tree], trainer_state: Any = None) -> None:
        """Fill `reward`, `parts` and `reason` of every leaf that has neither reward nor reason yet.

        R = Σ w·part over the functions that apply to the leaf: those whose part is not None. Where none applies, or
        some function fails or gives no finite number, the reward is missing, and `reason` says why.

        Raises:
            RewardError: a function lacks a column, or more than `max_failed` of the leaves lately scored have no reward
                because a function failed.
        """
        leaves = [(tree, leaf) for tree in trees for leaf in tree.leaves() if _unscored(tree.nodes[leaf])]
        if not leaves:
            return
        nodes = [tree.nodes[leaf] for tree, leaf in leaves]
        columns = self._columns(leaves)
        self.check(name for tree, _ in leaves for name in tree.question.columns)
        answers = self.caller.call(self.functions, columns, trainer_state, len(leaves))
        for answered in answers:
            for name, value in answered.metrics:
                self.logged.setdefault(name, []).append(value)
            for column, values in answered.extras:
                for node, value in zip(nodes, values):
                    node.extra[column] = value
        for i, (tree, leaf) in enumerate(leaves):
            lengths = np.cumsum([len(tree.nodes[place].ids_T) for place in tree.path(leaf)[1:]])
            self._settle(nodes[i], [answered.parts[i] for answered in answers], (int(lengths[0]), int(lengths[-1])))
        self._count_failures(nodes)

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

    def _settle(self, node: Node, values: list[tuple[float | None, str | None]], lengths: tuple[int, int]) -> None:
        """Pay one leaf; `lengths` are its thought's and the whole response's."""
        reward, reasons = 0.0, []
        for f, (part, reason) in zip(self.functions, values):
            node.parts[f.name] = part
            reward += f.weight * (part or 0.0)
            reasons += [f"{f.name}: {reason}"] if reason else []
        if not reasons and all(part is None for part in node.parts.values()):
            reasons = [NOT_APPLICABLE]
        if self.overlong_buffer:
            # the worse of both: a thought cut at its own limit is far from the response's
            penalty = min(overlong_penalty(*pair, self.overlong_buffer) for pair in zip(lengths, self.lengths))
            node.parts["overlong"] = penalty or None
            reward += penalty
        node.reward, node.reason = (None, "; ".join(reasons)) if reasons else (reward, None)

    def _count_failures(self, nodes: list[Node]) -> None:
        """Stop where too many leaves fail, those of the last calls among them: a short outage is no reason."""
        reasons = Counter(node.reason for node in nodes if node.reason not in (None, NOT_APPLICABLE))
        self._failed += reasons.total()
        self._scored += len(nodes)
        if self._failed > self.limits.max_failed * self._scored:
            told = "; ".join(f"{reason} ({count} times)" for reason, count in reasons.most_common(3))
            raise RewardError(
                f"rewards: functions failed on {self._failed} of the last {self._scored} responses, more than "
                f"reward_limits.max_failed: {self.limits.max_failed:g} allows: {told}"
            )
        if self._scored > MEMORY:
            self._failed, self._scored = self._failed // 2, self._scored // 2


def _unscored(node: Node) -> bool:
    return node.reward is None and node.reason is None


def _load(reward: RewardConfig | Callable[..., Any], timeout: float) -> RewardFunction:
    if not isinstance(reward, RewardConfig):
        if not callable(reward):
            raise ConfigError(f"rewards: {reward!r} is no function; give one, or a name such as 'math'")
        name = getattr(reward, "__name__", type(reward).__name__)
        return RewardFunction(name, reward, spec=spec_of(reward), timeout=timeout)
    spec, built_in = reward.function, reward.function in BUILT_IN
    if built_in:
        spec = f"branchwise.rewards.{spec}.{spec}"
    elif spec.isidentifier():
        raise ConfigError(
            f"rewards: there is no built-in {spec!r}; choose one of {', '.join(BUILT_IN)}, or name a function of "
            "yours: 'package.module.function' or 'file.py:function'"
        )
    function = load_function(spec)
    return RewardFunction(
        function.__name__,
        function,
        reward.weight,
        reward.args,
        spec,
        timeout=timeout if reward.timeout is None else reward.timeout,
        by_rows=built_in,
        ready=getattr(sys.modules[function.__module__], "check", None) if built_in else None,
    )


def _named(functions: list[RewardFunction]) -> list[RewardFunction]:
    """The same functions; a name that came before gets a number."""
    seen: Counter[str] = Counter()
    named = []
    for f in functions:
        seen[f.name] += 1
        named.append(f if seen[f.name] == 1 else replace(f, name=f"{f.name}_{seen[f.name]}"))
    return named
