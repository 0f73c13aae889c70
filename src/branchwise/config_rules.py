"""Combinations of settings that cannot be, each with its way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from branchwise.errors import ConfigError

if TYPE_CHECKING:
    from branchwise.config import Config

GROUNDING = ("box", "point", "trajectory")
"""Built-in rewards of coordinates."""


def conflicts(c: Config) -> Iterator[str]:
    """One line for each combination that cannot be."""
    for rules in (_of_trees, _of_the_algorithm, _of_sampling, _of_models_and_work, _of_images):
        yield from rules(c)


def _of_trees(c: Config) -> Iterator[str]:
    a, t = c.algorithm, c.tree
    if t.marker is None and t.answers > 1:
        yield (
            f"tree.answers: {t.answers} answers from a thought need a marker that ends it; "
            "set tree.marker (such as '</think>') or tree.answers: 1"
        )
    if t.marker == "":
        yield "tree.marker: '' can end nothing; set the text that ends a thought, or null for responses in one segment"
    if t.marker is None and t.unclosed != "score":
        yield (
            f"tree.unclosed: {t.unclosed!r} is about thoughts without their marker, and tree.marker is null; "
            "leave it out, or set tree.marker"
        )
    if t.uniform == "expand" and t.rephrasings == 0:
        yield "tree.uniform: 'expand' spends rollouts on rephrasings; set tree.rephrasings, or tree.uniform: resample"
    if t.uniform == "expand" and a.pool == "phrasing":
        yield "tree.uniform: 'expand' joins the rephrasings to the question's pool; set algorithm.pool: question"
    if t.thoughts * t.answers * (1 + t.rephrasings) < 2 or (a.pool == "phrasing" and t.thoughts * t.answers < 2):
        yield f"tree.thoughts: a pool of {t.thoughts} has nothing to compare; set tree.thoughts: 2 or more"


def _of_the_algorithm(c: Config) -> Iterator[str]:
    a, t = c.algorithm, c.tree
    of_answers = {"answer_weight": 1.0, "answer_clip_low": None, "answer_clip_high": None}
    if (t.marker is None or c.joint) and (idle := [key for key, off in of_answers.items() if getattr(a, key) != off]):
        yield (
            f"algorithm.{idle[0]}: {getattr(a, idle[0])} is for answers apart from their thoughts, and here a response "
            "is one node; leave it out, or set algorithm.segments: split and a tree.marker"
        )
    if a.segments == "joint" and t.answers > 1:
        yield (
            f"algorithm.segments: 'joint' takes a response as one node and cannot share a thought among "
            f"tree.answers: {t.answers}; set algorithm.segments: split"
        )
    if a.baseline == "leave_one_out" and a.scale == "group":
        yield (
            "algorithm.baseline: 'leave_one_out' divided by its own group's std makes spikes; "
            "set algorithm.scale: none (RLOO) or batch"
        )
    if a.anchor == "importance" and a.correction is None:
        yield "algorithm.anchor: 'importance' weighs tokens by min(C, π/μ); set algorithm.correction: C, such as 2.0"
    if a.surrogate == "cispo" and a.dual_clip is not None:
        yield "algorithm.dual_clip: goes with surrogate 'clip' alone; remove it or set algorithm.surrogate: clip"


def _of_sampling(c: Config) -> Iterator[str]:
    a, t, s = c.algorithm, c.tree, c.sampling
    truncated = [
        f"sampling.{key}: {value}"
        for key, value, off in (("top_p", s.top_p, 1.0), ("top_k", s.top_k, 0), ("min_p", s.min_p, 0.0))
        if value != off
    ]
    if truncated and not s.allow_truncated:
        yield (
            f"{', '.join(truncated)}: truncated sampling gives tokens probability 0 that the policy does not, so "
            "ratios are biased; leave it out, or set sampling.allow_truncated: true"
        )
    limit = s.max_thought_tokens + (s.max_answer_tokens if t.marker is None else 0)
    if a.overlong_buffer > limit:
        yield (
            f"algorithm.overlong_buffer: {a.overlong_buffer} tokens before a limit of {limit} would punish every "
            "response; lower it, or raise sampling.max_thought_tokens"
        )
    if t.answers > s.max_rows:
        yield (
            f"sampling.max_rows: {s.max_rows} rows cannot hold a thought's tree.answers: {t.answers}; "
            f"set sampling.max_rows: {t.answers} or more"
        )


def _of_models_and_work(c: Config) -> Iterator[str]:
    a, t = c.algorithm, c.tree
    if c.model.load_in_4bit and c.model.lora is None:
        yield "model.load_in_4bit: 4-bit weights cannot be trained; add model.lora"
    if c.model.load_in_4bit and not c.engine.takes_quantized:
        yield f"engine: {c.engine.kind!r} cannot take 4-bit weights from the policy; set engine: transformers"
    if c.train.async_depth and not c.engine.overlaps:
        yield (
            f"train.async_depth: {c.train.async_depth} samples while the policy updates, which engine: "
            f"{c.engine.kind!r} cannot; set engine: {{kind: vllm_server, urls: [...]}}, or train.async_depth: 0"
        )
    if c.train.async_depth and a.correction is None:
        yield (
            f"train.async_depth: {c.train.async_depth} trains on trees of older weights; set algorithm.correction: C, "
            "such as 2.0, which weighs their tokens by min(C, π_prox/μ), or train.async_depth: 0"
        )
    if c.train.questions < c.train.updates:
        yield (
            f"train.updates: {c.train.updates} optimizer steps cannot share train.questions: {c.train.questions}; "
            "a question's tree is never split: lower train.updates"
        )
    if (r := c.rephrase) is not None:
        if t.rephrasings == 0:
            yield "rephrase: nothing is asked for; set tree.rephrasings to the number wanted, or leave rephrase out"
        if "variables" in r.kinds and a.anchor == "original":
            yield (
                "rephrase.kinds: 'variables' renames letters, and under algorithm.anchor: original a response is "
                "scored after the original question, whose letters are others; leave it out, or set "
                "algorithm.anchor: behaviour"
            )
    if not c.rewards:
        yield "rewards: nothing would be rewarded; name a function, such as [math]"


def _of_images(c: Config) -> Iterator[str]:
    limit = "max_pixels" if c.data.max_pixels else "min_pixels" if c.data.min_pixels else None
    if limit and "answer" not in c.data.boxes:
        for reward in c.rewards:
            if reward.function in GROUNDING and reward.args.get("coordinates", "pixels") == "pixels":
                yield (
                    f"data.{limit}: changes the size of images, and the reward {reward.function!r} reads references in "
                    "their pixels; set data.boxes: [answer], so that these go along"
                )


def check_data(c: Config, train: bool, held_out: bool) -> None:
    """Refuse a run that lacks questions; the flags say which kinds there are, in the config or from Python.

    Raises:
        ConfigError: none to train on, or none for the evaluations asked for.
    """
    if not train:
        raise ConfigError("data.train: missing; name a file, a dataset id or reasoning_gym:TASK")
    if c.eval.every and not held_out:
        raise ConfigError(f"eval.every: {c.eval.every}, but nothing is held out; set data.eval, or eval.every: 0")


def check_images(c: Config, images: bool) -> None:
    """Refuse questions with images, of which the flag tells, where the engine takes none.

    Raises:
        ConfigError: it does not.
    """
    if images and not c.engine.takes_images:
        raise ConfigError(f"engine: {c.engine.kind!r} does not take the data's images; set engine: transformers")
