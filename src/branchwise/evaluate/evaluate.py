"""A model on a suite: sample, grade, store, go on where an earlier try stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from branchwise.config import Config, ModelConfig
from branchwise.config_rules import check_images
from branchwise.data.images import digest
from branchwise.data.prompt import Renderer
from branchwise.data.questions import load_questions, question_text
from branchwise.evaluate.settings import EvaluationSettings
from branchwise.evaluate.store import Problem, Sample, Store
from branchwise.evaluate.suites import Suite, suite_rows
from branchwise.rewards.run import RewardRunner
from branchwise.rollout.engine import Engine, Limb, Sampling
from branchwise.tree import Question, Tree

EVALUATION = -1
"""The step that keys the random numbers of evaluation, as in training's."""
Say = Callable[[str], None]


def evaluate(settings: EvaluationSettings, suite: Suite, folder: Path, engine: LoadedEngine, say: Say) -> list[Problem]:
    """Sample and grade every problem that `folder` does not hold yet, and return all of them.

    The same settings give the same samples: random numbers are keyed by problem and sample, and problems are sampled
    in the same batches whether an evaluation was interrupted or not.

    Raises:
        ConfigError: the suite's data or its grader cannot be had, or the folder holds other settings or problems.
    """
    with closing(Store(folder, settings.model_dump())) as store:
        return _evaluate(settings, suite, store, engine, say)


def _evaluate(
    settings: EvaluationSettings, suite: Suite, store: Store, engine: LoadedEngine, say: Say
) -> list[Problem]:
    config = settings.config()
    renderer = Renderer.of(engine.processing_class, config)
    questions, report = load_questions(suite_rows(suite, settings.limit), settings.data, renderer)
    say(f"{suite.name}: {str(report).removeprefix(f'{report.name}: ')}")
    check_images(config, any(question.images for question in questions))
    done = store.load(settings.batch, [(question.id, _asked(question)) for question in questions])
    if done:
        say(f"{suite.name}: {len(done)} of {len(questions)} problems are done already")
    if len(done) == len(questions):
        return done
    start, first = time.monotonic(), len(done)
    with closing(RewardRunner.of(None, config, engine.tokenizer)) as rewards:
        rewards.check({column for question in questions for column in question.columns})
        rewards.start()
        for begin in range(first, len(questions), settings.batch):
            begun = time.monotonic()
            trees = [
                renderer.seedling(question, draw=draw, step=EVALUATION, phrasings=1)
                for draw, question in enumerate(questions[begin : begin + settings.batch], start=begin)
            ]
            engine.get(config).grow([Limb(tree, 0, settings.samples, 1) for tree in trees], _sampling(settings))
            rewards.score(trees)
            problems = [_problem(tree, engine.tokenizer, settings.marker, suite.reward) for tree in trees]
            store.append(problems, time.monotonic() - begun)
            done += problems
            say(_progress(suite.name, done, len(questions), first, time.monotonic() - start))
    return done


class LoadedEngine:
    """A model's tokenizer or processor at once, its engine once something has to be sampled: all may be stored."""

    def __init__(self, model: ModelConfig) -> None:
        from branchwise.policy.load import load_processing

        self.processing_class: Any = load_processing(model)
        self.tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._engine: Engine | None = None
        self.kv_memory_gb: float | None = None
        """What the engine has for keys and values, once there is one."""

    def get(self, config: Config) -> Engine:
        """The engine, which serves every suite that has the same memory for keys and values: it shapes rounding."""
        if self._engine is None or self.kv_memory_gb != config.sampling.kv_memory_gb:
            self.close()
            self._engine = _load_engine(config, self.processing_class)
            self.kv_memory_gb = config.sampling.kv_memory_gb
        return self._engine

    def close(self) -> None:
        """Leave nothing running."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _load_engine(config: Config, processing_class: Any) -> Engine:
    from branchwise.policy.load import load_weights, pick_device, pick_precision
    from branchwise.rollout.make import make_engine

    device = pick_device(config.train.device)
    dtype = pick_precision(config.sampling.dtype, device)
    model = load_weights(config.model, device, dtype).eval()
    return make_engine(config, model, processing_class, precision=dtype, device=device)


def _sampling(settings: EvaluationSettings) -> Sampling:
    return Sampling(
        seed=settings.seed,
        temperature=settings.temperature,
        top_p=settings.top_p,
        marker=settings.marker,
        max_thought_tokens=settings.max_thought_tokens,
        max_answer_tokens=settings.max_answer_tokens,
    )


def _problem(tree: Tree, tokenizer: Any, marker: str | None, reward: str) -> Problem:
    question = tree.question
    samples = [_sample(tree, leaf, tokenizer, marker, reward) for leaf in tree.leaves()]
    images = [digest(picture.source) for picture in question.images]
    return Problem(question.id, _asked(question), question.columns.get("answer"), samples, images)


def _asked(question: Question) -> str:
    """The bare question's text."""
    columns = question.columns
    given = columns.get("prompt")
    return str(columns.get("question") or columns.get("problem") or question_text(given) or given)


def _sample(tree: Tree, leaf: int, tokenizer: Any, marker: str | None, reward: str) -> Sample:
    path = [tree.nodes[place] for place in tree.path(leaf)[1:]]
    node = path[-1]
    text = tokenizer.decode([int(i) for n in path for i in n.ids_T], skip_special_tokens=True)
    after = "" if node.unclosed else text.partition(marker)[2] if marker else text
    return Sample(
        text=text,
        answer=vote(after, reward, tree.question.columns),
        reward=node.reward,
        parts=node.parts,
        reason=node.reason,
        tokens=sum(len(n.ids_T) for n in path),
        finish=node.finish,
        unclosed=node.unclosed,
    )


def vote(text: str, reward: str, columns: dict[str, Any]) -> str | None:
    """The final answer of a response's text after the marker, in the form in which votes are counted.

    A letter for multiple choice; nothing for programs; else the final answer without blanks, dollars, and the braces'
    and fractions' variants.
    """
    if reward == "code":
        return None
    if reward == "choice":
        from branchwise.rewards.choice import chosen

        letters = "ABCDEFGHIJ"
        return chosen(text, dict(zip(letters, columns.get("choices") or [])) or None)
    from branchwise.diagnostics.responses import final_answer

    return final_answer(text)


def _progress(name: str, done: list[Problem], total: int, first: int, seconds: float) -> str:
    new = done[first:]
    tokens = sum(sample.tokens for problem in new for sample in problem.samples)
    left = int(seconds / len(new) * (total - len(done)))
    rewards = [s.reward for problem in done for s in problem.samples if s.reward is not None]
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
    speed = f"{tokens / seconds:.0f} tok/s"
    return f"{name}: {len(done)}/{total} problems · {mean} · {speed} · {left // 60}:{left % 60:02d} left"
