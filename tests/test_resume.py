"""A run that was interrupted and resumed is the run that was not, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from branchwise import Trainer
from branchwise.config import ConfigError
from branchwise.train.checkpoint import MANIFEST, STATE, damage, newest_whole

STEPS, KILLS = 5, 6
ROWS = [
    {"question": f"{a}+{b}=", "answer": str(a + b), "rephrasings": [f"{b}+{a}=", f"add {a}, {b}"]}
    for a in range(4)
    for b in range(4)
]


def likes_a(completions, completion_ids, **_):
    """Whether the letter a is among the tokens."""
    return [float(21 in ids) for ids in completion_ids]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def settings(folder, uniform="resample", lora=False, **train):
    return {
        "model": {"lora": {"r": 4}} if lora else {},
        "tree": {"thoughts": 2, "answers": 2, "rephrasings": 2, "uniform": uniform},
        "algorithm": {"pool": "question", "kl": 0.05},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5, "kv_memory_gb": 1},
        "eval": {"every": 2},
        "train": {
            "output_dir": str(folder), "steps": STEPS, "questions": 2, "updates": 2, "learning_rate": 1e-2,
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


def ended(model, folder, moment, **changed):
    run = Ended(model, [likes_a], ROWS, ROWS[:3], config=settings(folder, **changed))
    run.moment = moment
    with pytest.raises(SystemExit) as end:
        run.train()
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


@pytest.mark.parametrize(("uniform", "lora"), [("resample", False), ("expand", False), ("resample", True)])
def test_a_run_ended_by_a_signal_and_resumed_is_the_run_in_one_go(model, tmp_path, uniform, lora):
    trainer(model, tmp_path / "whole", uniform=uniform, lora=lora).train()
    whole = contents(tmp_path / "whole")
    for moment in range(2, STEPS):
        folder = tmp_path / f"ended-{moment}"
        ended(model, folder, moment, uniform=uniform, lora=lora, save_every=0)
        trainer(model, folder, uniform=uniform, lora=lora).train(resume_from_checkpoint=True)
        assert contents(folder) == whole


def test_optimizer_and_random_states_go_on_to_the_bit(model, tmp_path):
    trainer(model, tmp_path / "a").train()
    ended(model, tmp_path / "b", 3)
    trainer(model, tmp_path / "b").train(resume_from_checkpoint=True)
    a, b = (
        torch.load(tmp_path / name / "checkpoints" / f"{STEPS - 1:06d}" / STATE, weights_only=False) for name in "ab"
    )
    assert a["optimizer"]["state"].keys() == b["optimizer"]["state"].keys() != set()
    for i, state in a["optimizer"]["state"].items():
        assert all(torch.equal(value, b["optimizer"]["state"][i][key]) for key, value in state.items())
    assert a["scheduler"] == b["scheduler"]
    assert torch.equal(a["processes"][0]["random"]["torch"], b["processes"][0]["random"]["torch"])
    assert a["processes"][0]["cursor"] == b["processes"][0]["cursor"]


def test_damaged_checkpoints_are_passed_over_and_named(model, tmp_path, capsys):
    trainer(model, tmp_path / "whole").train()
    ended(model, tmp_path / "run", 4)
    checkpoints = tmp_path / "run" / "checkpoints"
    *_, second, last = sorted(checkpoints.iterdir())
    flipped = bytearray((last / STATE).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (last / STATE).write_bytes(flipped)
    assert damage(last) == f"{STATE} is not what was written"
    assert newest_whole(checkpoints)[0] == second
    with pytest.raises(ConfigError, match=f"--resume: {last} is damaged: {STATE} is not what was written"):
        trainer(model, tmp_path / "run").train(resume_from_checkpoint=last)
    trainer(model, tmp_path / "run").train(resume_from_checkpoint=True)
    assert "is damaged and passed over" in capsys.readouterr().out
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("harm", ["truncated", "missing", "no manifest"])
def test_every_damage_is_seen(model, tmp_path, harm):
    trainer(model, tmp_path, steps=2).train()
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert damage(checkpoint) is None
    weights = checkpoint / "model.safetensors"
    if harm == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        (weights if harm == "missing" else checkpoint / MANIFEST).unlink()
    assert damage(checkpoint)
    assert newest_whole(tmp_path / "checkpoints")[0] is None


def test_a_changed_config_is_refused_by_its_key(model, tmp_path):
    ended(model, tmp_path, 2)
    with pytest.raises(ConfigError, match=r"train.learning_rate: 0.1, but the run that is to be resumed had 0.01"):
        trainer(model, tmp_path, learning_rate=0.1).train(resume_from_checkpoint=True)
    with pytest.raises(ConfigError, match=r"train.steps: 9, .* had 5"):  # the linear schedule depends on it
        trainer(model, tmp_path, steps=9).train(resume_from_checkpoint=True)
    trainer(model, tmp_path, save_every=2).train(resume_from_checkpoint=True)


def test_without_a_checkpoint_a_new_run_begins(model, tmp_path, capsys):
    trainer(model, tmp_path, steps=1).train(resume_from_checkpoint=True)
    assert "there is no whole checkpoint to resume from" in capsys.readouterr().out


def test_older_checkpoints_keep_their_model_alone(model, tmp_path):
    trainer(model, tmp_path, keep_checkpoints=2).train()
    checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    assert [(folder / STATE).exists() for folder in checkpoints] == [False, False, True, True]
    assert all((folder / "model.safetensors").exists() for folder in checkpoints)


def test_a_full_disk_is_told_and_survived(model, tmp_path, capsys, monkeypatch):
    save = torch.save

    def full(state, file, *args, **kwargs):
        if "000002" in str(file):
            raise OSError(28, "No space left on device")
        return save(state, file, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    trainer(model, tmp_path, steps=4).train()
    assert "step 2: no checkpoint could be written, and the run goes on" in capsys.readouterr().out.replace("\n", " ")
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == ["000001", "000003"]


def test_two_processes_do_not_write_one_run(model, tmp_path):
    def second(completions, completion_ids, **_):
        with pytest.raises(ConfigError, match=r"train.output_dir: another process is writing to"):
            trainer(model, tmp_path).train()
        return likes_a(completions, completion_ids)

    trainer(model, tmp_path, second, steps=1).train()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_killed_at_random_moments_ends_as_the_run_in_one_go(model, tmp_path):
    """SIGKILL, at random moments of which some fall into the saving."""
    trainer(model, tmp_path / "whole", steps=40).train()
    config = tmp_path / "config.json"
    script = tmp_path / "script.py"
    config.write_text(json.dumps(settings(tmp_path / "run", steps=40)))
    script.write_text(
        f"import json, sys\nsys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from test_resume import ROWS, Trainer, likes_a\n"
        f"config = json.load(open({str(config)!r}))\n"
        f"Trainer({model!r}, [likes_a], ROWS, ROWS[:3], config=config).train(resume_from_checkpoint=True)\n"
    )
    draw = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_for_a_step(process, tmp_path / "run" / "metrics.jsonl")
        time.sleep(draw.uniform(0, 0.4))
        process.kill()
        process.wait()
    subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def _wait_for_a_step(process, metrics):
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    while process.poll() is None and (not metrics.exists() or metrics.stat().st_mtime_ns == before):
        time.sleep(0.01)
