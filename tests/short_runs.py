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
    """Gets SIGTERM while it samples for one of its steps."""

    def collect(self, step, clock):
        if step == self.moment:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().collect(step, clock)


def ended(model, folder, moment, resume=None, **changed):
    """Run until that step has been sampled; `folder` may be a whole config."""
    config = folder if isinstance(folder, dict) else settings(folder, **changed)
    run = Ended(model, [likes_a], ROWS, ROWS[:3] if "eval" in config else None, config=config)
    run.moment = moment
    with pytest.raises(SystemExit) as end:
        run.train(resume)
    assert end.value.code == 143


def contents(folder):
    """All of a run but its times, its memory and its checkpoints."""
    timed = ("seconds", "tokens_per_second", "memory/")
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
