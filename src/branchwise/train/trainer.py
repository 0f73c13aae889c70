"""The training loop, and the parts it holds together."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import get_scheduler, set_seed

from branchwise.config import Config, Source, load_config
from branchwise.config_rules import check_data, check_images
from branchwise.data.prompt import Renderer
from branchwise.data.questions import load_questions
from branchwise.data.stream import Stream
from branchwise.errors import WorkStopped
from branchwise.policy.load import load_architecture, load_policy, load_processing, positions_of
from branchwise.policy.policy import Policy
from branchwise.rewards.references import reference_notes
from branchwise.rewards.run import RewardRunner
from branchwise.rollout.collect import Batch, collect
from branchwise.rollout.engine import Engine, Limb
from branchwise.rollout.make import make_engine
from branchwise.rollout.memory import kv_memory_gb
from branchwise.train.ahead import Ahead
from branchwise.train.checkpoint import fingerprint, random_state
from branchwise.train.metrics import Stopwatch
from branchwise.train.optimizer import make_optimizer
from branchwise.train.run import Run
from branchwise.train.signals import Ended, Signals
from branchwise.train.update import Update, update
from branchwise.train.world import World
from branchwise.tree import Question, Tree

EVALUATION = -1
"""The step that keys the random numbers of evaluation: every evaluation draws with the same ones."""


class Trainer:
    """Trains a model on questions with reward functions.

    Args:
        model: a Hugging Face id, a folder, or a loaded model; default: the config's `model.path`.
        reward_funcs: functions with TRL's signature, or their names; default: the config's `rewards`.
        train_dataset: a dataset or a list of rows; default: the config's `data.train`.
        eval_dataset: held-out questions; default: the config's `data.eval`.
        config: a `Config`, a mapping, or a YAML file's path.
        peft_config: a peft config; default: the config's `model.lora`.
        processing_class: a tokenizer or processor; default: the model's own.

    Raises:
        ConfigError: a setting or the data cannot be.
    """

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        config: Config | dict[str, Any] | str | Path | None = None,
        peft_config: Any = None,
        processing_class: Any = None,
    ) -> None:
        c = _resolve(config, model)
        check_data(c, bool(train_dataset is not None or c.data.train), bool(eval_dataset is not None or c.data.eval))
        set_seed(c.train.seed)
        self.world = World(c.train)
        self.config = c
        self._model = None if model is None or isinstance(model, str) else model
        self._peft_config = peft_config
        architecture = load_architecture(c.model) if self._model is None else self._model.config
        self.processing_class = processing_class or load_processing(c.model)
        self.tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        self.rewards = RewardRunner.of(reward_funcs, c, self.tokenizer)
        self.notes = list(self.rewards.notes)
        """What is worth saying before the first step: how the policy runs, what became of the data's rows."""
        self.renderer = Renderer.of(self.processing_class, c, positions_of(architecture))
        self.questions = self._load(train_dataset, c.data.train, "data.train", c.tree.rephrasings)
        self.eval_questions = self._load(eval_dataset, c.data.eval, "data.eval", 0)
        asked = {_asked(question) for question in self.questions}
        if both := sum(_asked(question) in asked for question in self.eval_questions):
            self.notes.append(f"warning: {both} of {len(self.eval_questions)} held-out questions are trained on, too")
        self.notes.insert(0, self.policy.describe())
        if narrow := {str(p.dtype) for p in self.policy.trainable_parameters() if p.dtype.itemsize < 4}:
            self.notes.append(f"warning: {narrow.pop()} weights are trained; small steps round away, use float32 ones")
        c = self.config
        self.stream = Stream(len(self.questions), c.train.seed, c.data.shuffle, self.world.rank, self.world.size)
        self.optimizer = make_optimizer(self.policy.trainable_parameters(), c.train)
        self.scheduler = get_scheduler(
            "constant_with_warmup" if c.train.schedule == "constant" else c.train.schedule,
            self.optimizer,
            num_warmup_steps=c.train.warmup_steps,
            num_training_steps=c.train.steps * c.train.updates * c.train.epochs,
        )

    @cached_property
    def policy(self) -> Policy:
        """What is trained; loaded when it is first asked for, since by then the data is known to be sound."""
        policy = load_policy(
            self.config, model=self._model, processing_class=self.processing_class, peft_config=self._peft_config
        )
        self.config = _with_kv_memory(self.config, policy.device, self.world.size)
        return policy

    @cached_property
    def engine(self) -> Engine:
        """What samples; begun when it is first asked for, since by then the data is known to be sound."""
        p = self.policy
        return make_engine(self.config, p.model, p.processing_class, precision=p.precision, device=p.device)

    @cached_property
    def fingerprint(self) -> str:
        """Of the training questions."""
        return fingerprint(self.questions)

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> dict[str, Any]:
        """Run all steps; write the run directory; return the summary that summary.json holds.

        Args:
            resume_from_checkpoint: True for the run's newest whole checkpoint, if there is any, or a checkpoint's
                folder; default: the config's `train.resume`.

        Raises:
            ConfigError: the checkpoint is damaged, or the config has changed since.
            WorkStopped: the run could not go on; it says why, and which checkpoint is the last good one.
            SystemExit: control-C or SIGTERM ended it; the state is saved.
        """
        c = self.config
        self.rewards.start()
        run, ahead = Run(self), Ahead(self.collect, c.train.steps, c.train.async_depth, self.engine.close)
        first = run.resume(c.train.resume if resume_from_checkpoint is None else resume_from_checkpoint, ahead)
        with closing(self.engine), run, ahead, Signals(run.display.say) as signals, run.telling():
            signals.wait = first > 1
            if first == 1:
                run.evaluated(0, self.evaluate())
            for step in range(first, c.train.steps + 1):
                clock, last, lost = Stopwatch(), step == c.train.steps, None
                batch = self._take(step, run, ahead, signals, clock)
                with clock("update"):
                    self.engine.rest()
                    result = self._update(step, batch, run, ahead, signals)
                with clock("weights"), ahead.paused():
                    try:
                        self.engine.sync(self.policy.model)
                    except WorkStopped as error:
                        lost = error  # the update is done, and to be saved
                ahead.updated(step)
                run.stepped(step, batch, result, clock)
                signals.wait = True
                end = run.end(0 if last else signals.asked or 0, lost)
                if (last or (c.eval.every and step % c.eval.every == 0)) and not isinstance(end, Exception):
                    with ahead.paused():
                        run.evaluated(step, self.evaluate())
                if last or end or (c.train.save_every and step % c.train.save_every == 0):
                    run.save(step, ahead)
                if end:
                    raise end
            return run.summary()

    def _take(self, step: int, run: Run, ahead: Ahead, signals: Signals, clock: Stopwatch) -> Batch:
        """The step's batch. Where a process cannot have it, all save what they have and end together."""
        error: BaseException | None = None
        batch, before = Batch([]), random_state()
        try:
            with signals.at_once():
                batch = ahead.take(step, clock)
        except (Exception, Ended) as caught:
            error = caught
        ended = error.signal if isinstance(error, Ended) else 0
        diverged = isinstance(error, FloatingPointError)
        failed = self.world.sum({"max/any": error is not None, "max/ended": ended, "max/diverged": diverged})
        if not failed["max/any"]:
            return batch
        if step > 1 and not failed["max/diverged"]:
            run.save(step - 1, ahead, random_state() if ahead.ready else before)
        if isinstance(error, Exception):  # told, though a signal ends the other processes
            raise error
        if failed["max/ended"]:
            raise Ended(int(failed["max/ended"]))
        raise WorkStopped("another process of the run cannot go on; its own message says why")

    def _update(self, step: int, batch: Batch, run: Run, ahead: Ahead, signals: Signals) -> Update:
        """Change the weights; where a signal comes before they do, the batch is saved, to be gone on with."""
        before = random_state()
        try:
            return update(
                self.policy, self.optimizer, self.scheduler, batch.trees, self.config, self.world,
                ended=lambda: signals.asked or 0,
            )  # fmt: skip
        except Ended:
            run.save(step - 1, ahead, before)
            raise

    def collect(self, step: int, clock: Stopwatch) -> Batch:
        """Sample and reward this process's share of the step's trees."""
        sampling = self.config.sampling_plan()
        batch = collect(
            draw=lambda count: [
                self.renderer.seedling(self.questions[i], draw=draw, step=step) for draw, i in self.stream.take(count)
            ],
            grow=clock.timed("sampling", lambda limbs: self.engine.grow(limbs, sampling)),
            score=clock.timed("rewards", self.rewards.score),
            config=self.config,
            count=self.world.share(self.config.train.questions),
        )
        batch.logged, self.rewards.logged = self.rewards.logged, {}
        batch.cursor = self.stream.cursor
        return batch

    def evaluate(self) -> list[Tree]:
        """Sample and reward responses to all held-out questions; `held_out_mean` sums the trees up."""
        c, world = self.config, self.world
        sampling = replace(
            c.sampling_plan(),
            temperature=c.sampling.temperature if c.eval.temperature is None else c.eval.temperature,
            force_close=False,
        )
        mine = range(world.rank, len(self.eval_questions), world.size)
        trees = [self.renderer.seedling(self.eval_questions[i], draw=i, step=EVALUATION) for i in mine]
        self.engine.grow([Limb(tree, 0, c.eval.samples, 1) for tree in trees], sampling)
        self.rewards.score(trees)
        self.rewards.logged.clear()  # it would count among the next step's
        return world.gather(trees)

    def _load(self, given: Any, source: Source | None, key: str, rephrasings: int) -> list[Question]:
        """The usable questions of a dataset given from Python, or of the config's source."""
        data = source if given is None else given
        if data is None:
            return []
        if key == "data.train" and self.config.rephrase:
            from branchwise.rephrase.training import rephrased

            data = rephrased(self, data)
        questions, report = load_questions(data, self.config.data, self.renderer, rephrasings)
        check_images(self.config, any(question.images for question in questions))
        self.rewards.check({column for question in questions for column in question.columns})
        self.notes.append(f"{key}: {report}")
        self.notes += reference_notes(self.rewards.functions, questions, key)
        return questions


def _asked(question: Question) -> tuple[str, ...]:
    """What is asked, and of which images."""
    return str(question.phrasings[0]), *(picture.name for picture in question.images)


def _with_kv_memory(config: Config, device: torch.device, processes: int) -> Config:
    """The config with `sampling.kv_memory_gb` in it: that of the run in the same folder, or from what is free now."""
    if config.sampling.kv_memory_gb is not None:
        return config
    earlier = Path(config.train.output_dir) / "config.yaml"
    settings = yaml.safe_load(earlier.read_text(encoding="utf-8")) if earlier.is_file() else {}
    known = (settings or {}).get("sampling", {}).get("kv_memory_gb")
    sampling = config.sampling.model_copy(update={"kv_memory_gb": known or kv_memory_gb(device, processes)})
    return config.model_copy(update={"sampling": sampling})


def _resolve(config: Config | dict[str, Any] | str | Path | None, model: Any) -> Config:
    """The config, with the name of the model where one is given."""
    if model is None:
        return config if isinstance(config, Config) else load_config(config or {})
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "in-memory"
    if isinstance(config, Config):
        return config.model_copy(update={"model": config.model.model_copy(update={"path": name})})
    return load_config(config or {}, [f"model.path={json.dumps(name)}"])  # quoted: a name may look like YAML
