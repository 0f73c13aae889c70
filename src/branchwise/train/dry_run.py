"""Check a config to the last key, data and reward functions included, without loading weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from branchwise.config import Config, Source
from branchwise.config_rules import check_data, check_images
from branchwise.data.load import load_rows
from branchwise.data.prompt import Renderer
from branchwise.data.questions import load_questions
from branchwise.plugins import load_function
from branchwise.policy.load import load_processing
from branchwise.rephrase.estimate import estimate
from branchwise.rewards.references import reference_notes
from branchwise.rewards.run import RewardRunner


def dry_run(config: Config) -> Iterator[str]:
    """Yield what the run would be, a line each.

    Raises:
        ConfigError: a setting, the tokenizer, a reward function or the data cannot be.
    """
    c = config
    processing_class = load_processing(c.model)
    renderer = Renderer.of(processing_class, c)
    rewards = RewardRunner.of(None, c, renderer.tokenizer)
    if c.algorithm.advantage != "group_relative":
        load_function(c.algorithm.advantage)
    check_data(c, train=c.data.train is not None, held_out=c.data.eval is not None)
    assert c.data.train
    if c.rephrase:
        yield from estimate(load_rows(c.data.train), c.tree.rephrasings, c.rephrase)
    yield from _data(c.data.train, c, renderer, rewards, 0 if c.rephrase else c.tree.rephrasings, "data.train")
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
    check_images(c, any(question.images for question in questions))
    rewards.check({column for question in questions for column in question.columns})
    yield f"{key}: {report}"
    yield from reference_notes(rewards.functions, questions, key)
    lengths = [len(renderer.prompts(question)[0][0]) for question in questions]
    yield f"{key}: prompts of {min(lengths)} to {max(lengths)} tokens, median {int(np.median(lengths))}"
