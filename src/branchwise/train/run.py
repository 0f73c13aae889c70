"""The record of one training run: what is shown, logged, saved and summed up."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError

from branchwise.algorithm.objective import means
from branchwise.config import Config, ConfigError
from branchwise.config_text import flat
from branchwise.evaluate.heldout import HeldOut, held_out_mean
from branchwise.rollout.collect import Batch
from branchwise.train.checkpoint import STATE, damage, newest_whole, restore, state_of, thin_out, write_checkpoint
from branchwise.train.diagnostics import Diagnostics
from branchwise.train.metrics import Spread, Stopwatch, batch_metrics, batch_sums, missing_reasons
from branchwise.train.progress import Display
from branchwise.train.run_directory import RunDirectory
from branchwise.train.update import Update
from branchwise.tree import Tree

if TYPE_CHECKING:
    from branchwise.train.trainer import Trainer

RECORD = ("held_out", "best_step", "training_seconds", "totals")
"""What of a run goes on where it is resumed."""


class Run:
    """Keeps the record; only the main process writes."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.config, self.world = trainer, trainer.config, trainer.world
        self.display = Display(self.config.train.steps, quiet=not self.world.is_main)
        self.held_out: dict[int, HeldOut] = {}
        self.best_step: int | None = None
        self.training_seconds = 0.0
        self.totals: Counter[str] = Counter()
        self.first_step = 1
        self.spread = Spread(self.config.reward_limits.flat_steps)
        self.diagnostics = Diagnostics(trainer.config, trainer.world)

    def __enter__(self) -> Self:
        if self.world.is_main:
            self.directory = RunDirectory(self.config, self.trainer.tokenizer.decode, self.first_step - 1)
            if self.directory.earlier:
                self.display.say(f"the run that was in {self.directory.path} is now in {self.directory.earlier}")
        if self.config.train.trackers:
            self.world.accelerator.init_trackers("branchwise", config=_for_trackers(self.config))
        self.display.__enter__()
        for note in self.trainer.notes:
            self.display.say(note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.display.__exit__(kind, error, trace)
        if self.config.train.trackers:
            self.world.accelerator.end_training()
        self.trainer.rewards.close()
        if self.world.is_main:
            self.directory.close()

    def stepped(self, step: int, batch: Batch, result: Update, clock: Stopwatch) -> None:
        """Log a step: metrics over all processes, every tree, and what needs a warning."""
        seconds = sum(clock.seconds.values())
        sums = self.world.sum(batch_sums(batch))
        values = batch_metrics(sums) | update_metrics(result) | self._logged(batch.logged)
        values |= self.trainer.engine.metrics() | self.diagnostics.step(batch, result.grad_norms)
        values |= {f"seconds/{stage}": round(s, 4) for stage, s in (clock.background | clock.seconds).items()}
        values |= {
            "seconds": seconds,
            "tokens_per_second": sums["sampled_tokens"] / seconds,
        }
        self.training_seconds += seconds
        self.totals += Counter(
            {k: int(v) for k, v in sums.items() if v and k.startswith(("drawn/", "leaves", "missing"))}
        )
        self.totals["updates"] += len(result.grad_norms)
        trees = self.world.gather(list(zip(batch.trees, result.advantages)))
        rejected = self.world.gather(batch.rejected)
        if self.world.is_main:
            self.directory.metrics(step, values)
            self.directory.trees(f"{step:06d}", [t for t, _ in trees], [a for _, a in trees])
            if rejected:
                self.directory.trees(f"{step:06d}-replaced", rejected)
        if self.config.train.trackers:
            self.world.accelerator.log(values, step=step)
        self._warn(step, [tree for tree, _ in trees], result)
        for warning in self.spread.warnings([tree for tree, _ in trees]):
            self.display.warn(f"step {step}: {warning}")
        self.display.step(step, values)

    def _logged(self, logged: dict[str, list[float]]) -> dict[str, float]:
        """Means of what reward functions gave to `log_metric` in this step, over all processes."""
        sums = {f"rewards/{name}/sum": sum(values) for name, values in logged.items()}
        sums |= {f"rewards/{name}/count": len(values) for name, values in logged.items()}
        return means(self.world.sum(sums))

    def _warn(self, step: int, trees: list[Tree], result: Update) -> None:
        missing = missing_reasons(trees)
        if result.idle:
            self.display.warn(
                f"step {step}: {result.idle} of {self.config.train.updates * self.config.train.epochs} updates had no "
                f"gradient: every pool was uniform (all rewards equal){' or lacked rewards' if missing else ''}, so "
                "nothing was learnt from it"
            )
        if result.not_finite:
            self.display.warn(f"step {step}: the gradient was not finite; {result.not_finite} updates left out")
        self._warn_missing(f"step {step}", missing)

    def _warn_missing(self, where: str, reasons: Counter[str]) -> None:
        for reason, count in reasons.most_common(3):
            self.display.warn(f"{where}: {count} rewards are missing: {reason}")

    def evaluated(self, step: int, trees: list[Tree]) -> None:
        """Log a held-out evaluation, of which these are the trees, and keep the model if it is the best so far."""
        if not trees:
            return
        if self.world.is_main:
            self.directory.trees(f"held-out-{step:06d}", trees)
        held_out = held_out_mean(trees)
        self._warn_missing("held-out evaluation", missing_reasons(trees))
        if held_out is None:
            return
        self.held_out[step] = held_out
        self.display.say(f"held-out mean reward {'before' if step == 0 else f'after step {step}'}: {held_out}")
        if self.world.is_main:
            self.directory.metrics(step, {f"held_out/{k}": v for k, v in asdict(held_out).items()})
        if self.config.train.trackers:
            self.world.accelerator.log({"held_out": held_out.mean}, step=step)
        if step and self.config.eval.every and held_out.mean == max(h.mean for h in self.held_out.values()):
            self.best_step = step
            self._save("best")

    def save(self, step: int, cursor: int) -> None:
        """Write a checkpoint, or after the last step the final model.

        Args:
            cursor: how many questions this process had drawn for the steps so far.
        """
        if step == self.config.train.steps:
            self._save("model")
            self.display.say(f"the model is in {Path(self.config.train.output_dir) / 'model'}")
            return
        state = state_of(self.trainer, self, step, cursor)
        if self.world.is_main:
            self._checkpoint(step, state)
        self.world.wait()

    def _checkpoint(self, step: int, state: dict[str, Any]) -> None:
        def fill(folder: Path) -> None:
            self.trainer.policy.save(folder)
            torch.save(state, folder / STATE)

        checkpoints = self.directory.path / "checkpoints"
        self.directory.sync()
        try:
            write_checkpoint(checkpoints / f"{step:06d}", fill)
        except (OSError, RuntimeError, SafetensorError) as error:  # the latter two are torch's and safetensors' own
            self.display.warn(f"step {step}: no checkpoint could be written, and the run goes on: {error}")
        else:
            thin_out(checkpoints, self.config.train.keep_checkpoints)

    def _save(self, name: str) -> None:
        if self.world.is_main:
            write_checkpoint(self.directory.path / name, self.trainer.policy.save)
        self.world.wait()

    def resume(self, wanted: Literal[True] | str | Path) -> int:
        """Put the run where a checkpoint left it; return the first step to take.

        Args:
            wanted: a checkpoint's folder; True: the newest that is whole, and where there is none a new run.

        Raises:
            ConfigError: the checkpoint is damaged, or the config has changed in what the remaining steps depend on.
        """
        if wanted is True:
            folder, passed_over = newest_whole(Path(self.config.train.output_dir) / "checkpoints")
            self.trainer.notes += [f"warning: {line}" for line in passed_over]
        else:
            folder = Path(wanted)
            if (wrong := damage(folder)) is not None:
                raise ConfigError(f"--resume: {folder} is damaged: {wrong}; name another, or none for the newest whole")
        if folder is None:
            self.trainer.notes.append("there is no whole checkpoint to resume from: a new run begins")
            return 1
        # a run's own file, which holds more than tensors
        state = torch.load(folder / STATE, map_location="cpu", weights_only=False)
        restore(self.trainer, self, state)
        self.first_step = state["step"] + 1
        self.trainer.notes.append(f"resumed from {folder}, after step {state['step']}")
        return self.first_step

    def state(self) -> dict[str, Any]:
        """What the record of further steps depends on."""
        looked_back = {"spread": self.spread, "spikes": self.diagnostics.spikes, "thoughts": self.diagnostics.thoughts}
        return looked_back | {key: getattr(self, key) for key in RECORD}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the record of an earlier process."""
        self.spread = state["spread"]
        self.diagnostics.spikes, self.diagnostics.thoughts = state["spikes"], state["thoughts"]
        for key in RECORD:
            setattr(self, key, state[key])

    def summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        c = self.config
        before, after = self.held_out.get(0), self.held_out.get(c.train.steps)
        summary = {
            "algorithm": c.preset or "custom",
            "model": c.model.path,
            "steps": c.train.steps,
            "updates": self.totals["updates"],
            "leaves": self.totals["leaves"],
            "missing_rewards": self.totals["missing"],
            "training_seconds": round(self.training_seconds, 1),
            "held_out": {name: asdict(h) for name, h in (("before", before), ("after", after)) if h},
            "best_step": self.best_step,
            "uniform_pools": {level: self._uniform(level) for level in ("question", "phrasing")},
        }
        if self.world.is_main:
            self.directory.write_json("summary.json", summary)
        return summary

    def _uniform(self, level: str) -> dict[str, int]:
        """How many pools there were, and how many of them taught nothing, if pools were taken by `level`."""
        uniform = sum(self.totals[f"drawn/{level}/{kind}"] for kind in ("all_right", "all_wrong", "tied"))
        return {"pools": self.totals[f"drawn/{level}/pools"], "uniform": uniform}


def update_metrics(result: Update) -> dict[str, float]:
    """The update's means, maxima and counts."""
    metrics: dict[str, float] = {
        "learning_rate": result.learning_rate,
        "idle_updates": result.idle,
        "not_finite_updates": result.not_finite,
        "forwarded_tokens": result.tokens,
    }
    if result.grad_norms:
        metrics["grad_norm"] = float(np.mean(result.grad_norms))
    return metrics | means(result.stats)


def _for_trackers(config: Config) -> dict[str, Any]:
    """Settings as trackers take them: by dotted key, numbers and texts alone."""
    return {
        key: value if isinstance(value, (int, float, str, bool)) else str(value)
        for key, value in flat(config.model_dump()).items()
    }
