"""Short runs of a tiny model, ended within and gone on with, and all there is to compare of them."""

import json
import os
import random
import signal

import pytest
import torch
from commands import ROWS
from letters import likes_a
from safetensors.torch import load_file

from branchwise import Trainer
from branchwise.train import update


def settings(folder, uniform="resample", lora=False, **train):
    return {
        "model": {"lora": {"r": 4}} if lora else {},
        "tree": {"thoughts": 2, "answers": 2, "rephrasings": 2, "uniform": uniform},
        "algorithm": {"pool": "question", "kl": 0.05},
        "sampling": {"max_thought_tokens": 8, "max_answer_tokens": 4, "kv_memory_gb": 1},
        "eval": {"every": 4},
        "train": {
            "output_dir": str(folder), "steps": 5, "questions": 2, "updates": 2, "learning_rate": 1e-2,
            "schedule": "linear", "precision": "float32", "device": "cpu", "save_every": 1, **train,
        },
    }  # fmt: skip


def trainer(model, folder, reward=likes_a, **changed):
    return Trainer(model, [reward], ROWS, ROWS[:3], config=settings(folder, **changed))


class Ended(Trainer):
    """Gets SIGTERM once: in the named part of one of its steps."""

    def collect(self, step, clock):
        self.collected.append(step)
        self._signal("sampling", step)
        return super().collect(step, clock)

    def _take(self, step, run, ahead, *rest):
        def taken(*arguments):
            batch = type(ahead).take(ahead, *arguments)
            self._signal("taken", step)
            return batch

        ahead.take = taken
        return super()._take(step, run, ahead, *rest)

    def _update(self, step, *rest):
        objective = update.objective

        def after_a_pack(*arguments):
            self._signal("update", step)
            return objective(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(update, "objective", after_a_pack)
            hook = self.optimizer.register_step_post_hook(lambda *_: self._signal("second update", step))
            result = super()._update(step, *rest)
            hook.remove()
        self._signal("end", step)
        return result

    def _signal(self, part, step):
        if (part, step) == (self.part, self.moment):
            self.part = None
            os.kill(os.getpid(), signal.SIGTERM)


def ended(model, folder, moment, resume=None, part="end", **changed):
    """Run until the part of that step: `sampling`, `taken`, `update`, `second update`, `end`.

    Args:
        folder: of the run, or a whole config.

    Returns:
        The steps that it sampled for.
    """
    config = folder if isinstance(folder, dict) else settings(folder, **changed)
    run = Ended(model, [likes_a], ROWS, ROWS[:3] if "eval" in config else None, config=config)
    run.part, run.moment, run.collected = part, moment, []
    with pytest.raises(SystemExit) as end:
        run.train(resume)
    assert end.value.code == 143
    return run.collected


def contents(folder):
    """All of a run but its times (and the advice drawn from them), its memory and its checkpoints."""
    timed = ("seconds", "tokens_per_second", "memory/", "advice/")
    metrics = [
        {key: value for key, value in json.loads(line).items() if not key.startswith(timed)}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    trees = {file.name: file.read_text() for file in sorted((folder / "trees").iterdir())}
    weights = {name: t.tolist() for name, t in load_file(folder / "model" / "model.safetensors").items()}
    return metrics, trees, weights


def everything(run, folder):
    """Its contents, and what only the process has: the very weights, the optimizer, the schedule, random states."""
    weights = {name: p.tolist() for name, p in run.policy.model.named_parameters()}
    state = run.optimizer.state_dict()["state"]
    optimizer = {i: {key: value.tolist() for key, value in of.items()} for i, of in state.items()}
    drawn = (run.stream.cursor, torch.get_rng_state().tolist(), random.getstate())
    return contents(folder), weights, optimizer, run.scheduler.state_dict(), drawn
