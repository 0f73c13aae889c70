"""Check a config to the last key, data and reward functions included, without loading weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from transformers import AutoTokenizer

from branchwise.config import Config, ConfigError, Source
from branchwise.data.prompt import Renderer
from branchwise.data.questions import load_questions
from branchwise.plugins import load_function
from branchwise.rewards.references import reference_notes
from branchwise.rewards.run import RewardRunner


def dry_run(config: Config) -> Iterator[str]:
    """Yield what the run would be, a line each.

    Raises:
        ConfigError: a setting, the tokenizer, a reward function or the data cannot be.
    """
    c = config
    tokenizer = _tokenizer(c)
    renderer = Renderer.of(tokenizer, c)
    rewards = RewardRunner.of(None, c, tokenizer)
    if c.algorithm.advantage != "group_relative":
        load_function(c.algorithm.advantage)
    if c.data.train is None:
        raise ConfigError("data.train: missing; name a file, a dataset id or reasoning_gym:TASK")
    yield from _data(c.data.train, c, renderer, rewards, c.tree.rephrasings, "data.train")
    if c.data.eval:
        yield from _data(c.data.eval, c, renderer, rewards, 0, "data.eval")
    yield f"rewards: {', '.join(reward.function for reward in c.rewards)}"
    phrasings, t = 1 + c.tree.rephrasings, c.tree
    leaves = phrasings * t.thoughts * t.answers
    yield (
        f"a step: {c.train.questions} questions × {phrasings} phrasings × {t.thoughts} thoughts × {t.answers} answers "
        f"= {c.train.questions * leaves} leaves at most, {c.train.updates * c.train.epochs} optimizer steps"
    )
    yield f"the config is sound; nothing was written to {c.train.output_dir}"


def _data(
    source: Source, c: Config, renderer: Renderer, rewards: RewardRunner, rephrasings: int, key: str
) -> Iterator[str]:
    questions, report = load_questions(source, c.data, renderer, rephrasings)
    rewards.check({column for question in questions for column in question.columns})
    yield f"{key}: {report}"
    yield from reference_notes(rewards.functions, questions, key)
    lengths = [len(renderer.ids(question.phrasings[0])) for question in questions]
    yield f"{key}: prompts of {min(lengths)} to {max(lengths)} tokens, median {int(np.median(lengths))}"


def _tokenizer(c: Config):
    try:
        return AutoTokenizer.from_pretrained(
            c.model.path, revision=c.model.revision, trust_remote_code=c.model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: no tokenizer at {c.model.path!r}: {str(error).splitlines()[0]}") from None
