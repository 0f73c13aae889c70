"""The record of one training run: what is shown, logged, saved and summed up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from safetensors import SafetensorError

from branchwise.algorithm.objective import means
from branchwise.config import Config, ConfigError
from branchwise.config_text import flat
from branchwise.errors import WorkStopped
from branchwise.evaluate.heldout import HeldOut, held_out_mean
from branchwise.rollout.collect import Batch
from branchwise.train.checkpoint import (
    STATE,
    chosen,
    lacking,
    not_finite,
    restore,
    state_of,
    thin_out,
    write_checkpoint,
)
from branchwise.train.diagnostics import Diagnostics
from branchwise.train.metrics import Spread, Stopwatch, batch_metrics, batch_sums, missing_reasons
from branchwise.train.not_finite import record
from branchwise.train.progress import Display
from branchwise.train.run_directory import RunDirectory, locked
from branchwise.train.update import Update
from branchwise.tree import Tree

if TYPE_CHECKING:
    from branchwise.train.ahead import Ahead
    from branchwise.train.trainer import Trainer

RECORD = ("held_out", "best_step", "best", "training_seconds", "totals", "not_finite_in_a_row")
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
        self.not_finite_in_a_row = 0
        self.saved: Path | None = None
        """The newest checkpoint, written or resumed from."""
        self.best: tuple[float, int] | None = None
        """Value and step of the best checkpoint by `train.keep_best`; of a lowest one the value is negated."""
        self._values: dict[str, float] = {}
        """The last step's metrics."""
        self.spread = Spread(self.config.reward_limits.flat_steps)
        self.diagnostics = Diagnostics(trainer.config, trainer.world)

    def __enter__(self) -> Self:
        if self.world.is_main:
            self.directory = RunDirectory(self.config, self.trainer.tokenizer.decode, self.first_step - 1)
            if self.directory.earlier:
                self.display.say(f"the run that was in {self.directory.path} is now in {self.directory.earlier}")
            for note in self.directory.notes:
                self.display.say(note)
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
        stages = clock.background | clock.seconds
        values |= self.trainer.engine.metrics() | self.diagnostics.step(batch, result.grad_norms, stages)
        values |= {f"seconds/{stage}": round(s, 4) for stage, s in stages.items()}
        values |= {
            "seconds": seconds,
            "tokens_per_second": sums["sampled_tokens"] / seconds,
        }
        self.training_seconds += seconds
        self.totals += Counter(
            {k: int(v) for k, v in sums.items() if v and k.startswith(("drawn/", "leaves", "missing"))}
        )
        self.totals["updates"] += len(result.grad_norms)
        self._values = values
        trees = self.world.gather(list(zip(batch.trees, result.advantages, result.weights)))
        rejected, faults = self.world.gather(batch.rejected), self.world.gather(result.faults)
        if self.world.is_main:
            self.directory.metrics(step, values)
            self.directory.trees(f"{step:06d}", [t for t, _, _ in trees], [a for _, a, _ in trees])
            if faults:
                kept = self.directory.not_finite(step, faults, [record(*tree) for tree in trees])
                self.display.warn(f"step {step}: a loss or gradient was not finite; where, and on what, is in {kept}")
            if rejected:
                self.directory.trees(f"{step:06d}-replaced", rejected)
        if self.config.train.trackers:
            self.world.accelerator.log(values, step=step)
        self.not_finite_in_a_row = result.in_a_row + (0 if result.grad_norms else self.not_finite_in_a_row)
        self._warn(step, [tree for tree, _, _ in trees], result)
        for warning in self.spread.warnings([tree for tree, _, _ in trees]):
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
            self.display.warn(f"step {step}: {result.not_finite} updates left out: not finite")
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
        self._values = self._values | {f"held_out/{k}": v for k, v in asdict(held_out).items()}
        self.display.say(f"held-out mean reward {'before' if step == 0 else f'after step {step}'}: {held_out}")
        if self.world.is_main:
            self.directory.metrics(step, {f"held_out/{k}": v for k, v in asdict(held_out).items()})
        if self.config.train.trackers:
            self.world.accelerator.log({"held_out": held_out.mean}, step=step)
        if step and self.config.eval.every and held_out.mean == max(h.mean for h in self.held_out.values()):
            if error := self._save("best"):
                self.display.warn(f"step {step}: the best model so far could not be written: {error}")
            else:
                self.best_step = step

    def save(self, step: int, ahead: Ahead, random: dict[str, Any] | None = None) -> None:
        """Write a checkpoint, or after the last step the final model.

        Args:
            ahead: what is sampled ahead is part of the state; nothing is sampled meanwhile.
            random: the random states after `step`, where something has drawn since.

        Raises:
            FloatingPointError: the weights are not finite; no checkpoint is to hide the last good one.
            WorkStopped: the final model could not be written.
        """
        if name := not_finite(self.trainer):
            raise FloatingPointError(f"after step {step} the weights are not finite ({name})")
        if step == self.config.train.steps:
            if error := self._save("model"):
                raise WorkStopped(f"the model could not be written: {error}; make room")
            self.display.say(f"the model is in {Path(self.config.train.output_dir) / 'model'}")
            return
        best = self.best
        self._rate(step)
        with ahead.paused():
            state = state_of(self.trainer, self, ahead, step, random)
        folder = Path(self.config.train.output_dir) / "checkpoints" / f"{step:06d}"
        # where the state after this step is there already, batches sampled since make it worth writing again
        new = folder != self.saved or any(process["ahead"]["ready"] for process in state["processes"])
        failed = self.world.is_main and new and self._checkpoint(step, folder, state)
        if self.world.sum({"failed": failed})["failed"]:
            self.best = best
            self.totals["failed_saves"] += 1
        else:
            self.saved = folder

    def _rate(self, step: int) -> None:
        """Note whether this step's checkpoint is the best so far."""
        if (metric := self.config.train.keep_best) is None:
            return
        value = self._values.get(metric.removeprefix("-"))
        later = self.config.eval.every and metric.removeprefix("-").startswith("held_out/")
        if value is None and self._values and not later:
            self.display.warn(f"step {step}: train.keep_best: there is no metric {metric!r}; see metrics.jsonl")
        if value is None or not math.isfinite(value):
            return
        value = -value if metric.startswith("-") else value
        if self.best is None or value > self.best[0]:
            self.best = value, step

    def _checkpoint(self, step: int, folder: Path, state: dict[str, Any]) -> bool:
        """Write it; True if that failed, which a run survives: it is told and counted, and tried again next time."""

        def fill(folder: Path) -> None:
            self.trainer.policy.save(folder)
            torch.save(state, folder / STATE)

        try:
            if not (error := lacking(self.trainer, state, folder)):
                self.directory.sync()
                write_checkpoint(folder, fill)
        except Exception as caught:  # besides OSError: torch's, safetensors' and pickle's own
            error = str(caught)
        if error:
            last = f"the last one is {self.saved}" if self.saved else "there is none yet"
            self.display.warn(f"step {step}: no checkpoint could be written: {error}; {last}")
            return True
        thin_out(folder.parent, self.config.train, self.best and self.best[1])
        return False

    def _save(self, name: str) -> str | None:
        """Write the model; returns what went wrong."""
        error = None
        if self.world.is_main:
            try:
                write_checkpoint(self.directory.path / name, self.trainer.policy.save)
            except (OSError, SafetensorError) as caught:
                error = str(caught)
        return next((told for told in self.world.gather([error]) if told), None)

    def end(self, signal: int, lost: Exception | None) -> BaseException | None:
        """What ends the run after this step, the same on all processes, or None."""
        # signals reach processes at different moments, and saving needs them all
        ends = self.world.sum({"max/signal": signal, "max/lost": lost is not None})
        if ends["max/lost"]:
            return lost or WorkStopped("another process of the run cannot go on; its own message says why")
        if self.not_finite_in_a_row >= self.config.train.max_not_finite:
            return WorkStopped(
                f"the loss or gradient of {self.not_finite_in_a_row} optimizer steps in a row was not finite "
                f"(train.max_not_finite: {self.config.train.max_not_finite}); their batches are in "
                f"{Path(self.config.train.output_dir) / 'not_finite'}. Try train.precision: float32, or a lower "
                "train.learning_rate"
            )
        return SystemExit(128 + int(ends["max/signal"])) if ends["max/signal"] else None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Whatever ends the run, say from where it can go on."""
        try:
            yield
        except (WorkStopped, FloatingPointError, OSError) as error:
            raise WorkStopped(f"{error}. {self.way_on()}") from error
        except ConfigError as error:
            raise type(error)(f"{error}. {self.way_on()}") from error
        except Exception as error:
            error.add_note(self.way_on())
            raise
        except (SystemExit, KeyboardInterrupt):
            self.display.say(self.way_on())
            raise

    def way_on(self) -> str:
        if self.saved is None:
            return "No checkpoint had been written"
        return f"The last good checkpoint is {self.saved}; --resume goes on from it"

    def resume(self, wanted: bool | str | Path, ahead: Ahead) -> int:
        """Put the run where a checkpoint left it; return the first step to take.

        Args:
            wanted: as `train.resume`; True: `auto`, False: `never`.

        Raises:
            ConfigError: the checkpoint is damaged, or the config has changed in what the remaining steps depend on.
        """
        if wanted in (False, "never"):
            return 1
        run = Path(self.config.train.output_dir)
        with locked(run) if self.world.is_main and run.is_dir() else nullcontext():
            folder, passed_over = chosen(run / "checkpoints", "auto" if isinstance(wanted, bool) else wanted)
            self.trainer.notes += [f"warning: {line}" for line in passed_over]
            if folder is None:
                self.trainer.notes.append("there is no whole checkpoint to resume from: a new run begins")
                return 1
            # a run's own file, which holds more than tensors
            state = torch.load(folder / STATE, map_location="cpu", weights_only=False)
        restore(self.trainer, self, ahead, state)
        self.saved, self.first_step = folder, state["step"] + 1
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
            "failed_saves": self.totals["failed_saves"],
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
