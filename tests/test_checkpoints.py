"""Which checkpoints are kept, which one is gone on from, and what becomes of the others."""

import json
import shutil

import pytest
import tiny
from commands import ROWS
from letters import likes_a
from short_runs import contents, ended, settings, trainer

from branchwise import ConfigError, Trainer
from branchwise.errors import WorkStopped
from branchwise.export.source import find_checkpoint
from branchwise.train import checkpoint
from branchwise.train.checkpoint import STATE, newest_whole


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def with_state(folder):
    return [int(f.name) for f in sorted((folder / "checkpoints").iterdir()) if (f / STATE).exists()]


def test_the_newest_and_every_third_and_the_best_are_kept(model, tmp_path):
    trainer(model, tmp_path, steps=9, keep_checkpoints=2, keep_every=3, keep_best="-seconds/update").train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seconds = {
        line["step"]: line["seconds/update"] for line in lines if line["step"] in range(1, 9) and "reward" in line
    }
    best = min(seconds, key=seconds.get)
    assert with_state(tmp_path) == sorted({3, 6, 7, 8, best})
    assert len(list((tmp_path / "checkpoints").iterdir())) == 8  # the others keep their model


def test_older_checkpoints_can_go_wholly(model, tmp_path):
    trainer(model, tmp_path, keep_checkpoints=1, keep_models=False).train()
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000004"]


def test_the_best_is_still_the_best_after_a_resume(model, tmp_path):
    changed = {"steps": 8, "keep_checkpoints": 1, "keep_best": "held_out/mean"}
    trainer(model, tmp_path / "whole", **changed).train()
    ended(model, tmp_path / "ended", 5, **changed)
    trainer(model, tmp_path / "ended", **changed).train(True)
    assert with_state(tmp_path / "ended") == with_state(tmp_path / "whole")


def test_a_metric_that_is_not_there_is_told(model, tmp_path, capsys):
    trainer(model, tmp_path, steps=2, keep_best="rewards").train()
    assert "train.keep_best: there is no metric 'rewards'" in capsys.readouterr().out


def test_too_little_room_is_seen_before_writing(model, tmp_path, capsys, monkeypatch):
    usage, asked = shutil.disk_usage, []

    def little(path):
        asked.append(path)
        return usage(path)._replace(free=10**6 if len(asked) == 2 else 10**12)

    monkeypatch.setattr(checkpoint.shutil, "disk_usage", little)
    summary = trainer(model, tmp_path, steps=4).train()
    out = capsys.readouterr().out
    assert "step 2: no checkpoint could be written: it needs 0.0" in out and "has 0.001 GB free; make room" in out
    assert with_state(tmp_path) == [1, 3] and summary["failed_saves"] == 1


def test_without_any_checkpoint_that_is_what_is_said(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "MARGIN", 1 << 60)
    trainer(model, tmp_path, steps=2).train()
    assert "make room there; there is none yet" in capsys.readouterr().out


def test_what_room_a_checkpoint_needs(model, tmp_path):
    run = trainer(model, tmp_path, steps=2)
    run.train()
    whole = sum(file.stat().st_size for file in (tmp_path / "checkpoints" / "000001").iterdir())
    tensors = 4 * sum(p.numel() for p in run.policy.model.parameters())
    # the model; and weights and two moments in the state
    assert whole > 4 * tensors
    assert whole < 1.02 * 4 * tensors + checkpoint.MARGIN


def test_auto_must_and_never(model, tmp_path):
    with pytest.raises(ConfigError, match=r"'must', but .*checkpoints holds no whole checkpoint; set auto"):
        trainer(model, tmp_path / "a", resume="must").train()
    trainer(model, tmp_path / "whole").train()
    ended(model, tmp_path / "a", 3, resume=None)
    trainer(model, tmp_path / "a", resume="auto").train()
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")
    trainer(model, tmp_path / "a", steps=1).train()  # never is the default
    assert contents(tmp_path / "a.1") == contents(tmp_path / "whole")


def test_must_names_the_damaged_ones(model, tmp_path):
    ended(model, tmp_path, 2, save_every=0)
    (tmp_path / "checkpoints" / "000002" / STATE).unlink()
    with pytest.raises(ConfigError, match=r"no whole checkpoint; .*000002 is damaged and passed over: state.pt is m"):
        trainer(model, tmp_path, resume="must").train()


def test_what_is_no_checkpoint_of_the_run_is_refused(model, tmp_path):
    ended(model, tmp_path / "a", 2)
    with pytest.raises(ConfigError, match=r"train.resume: alwyas: no such folder; name a checkpoint, or set never"):
        trainer(model, tmp_path / "a", resume="alwyas").train()
    trainer(model, tmp_path / "a", keep_checkpoints=1).train(True)
    with pytest.raises(ConfigError, match=r"000002 holds no state to go on from \(train.keep_checkpoints"):
        trainer(model, tmp_path / "a").train(tmp_path / "a" / "checkpoints" / "000002")
    ended(model, tmp_path / "a", 2)
    with pytest.raises(ConfigError, match=r"train.resume: .*000002 is another run's; set train.output_dir"):
        trainer(model, tmp_path / "b").train(tmp_path / "a" / "checkpoints" / "000002")


def test_other_data_is_refused(model, tmp_path):
    ended(model, tmp_path, 2)
    for rows in (ROWS[:-1], ROWS[::-1], [{**ROWS[0], "answer": "9"}, *ROWS[1:]]):
        with pytest.raises(ConfigError, match=r"data.train: the questions, .* are not those that the run had"):
            Trainer(model, [likes_a], rows, ROWS[:3], config=settings(tmp_path)).train(True)


def test_a_run_that_has_no_steps_left_is_refused(model, tmp_path):
    trainer(model, tmp_path, schedule="constant").train()
    with pytest.raises(ConfigError, match=r"train.steps: 4, but the run has gone on to step 4 already; set it higher"):
        trainer(model, tmp_path, schedule="constant", steps=4).train(True)


def test_a_finished_run_that_goes_on_has_no_final_model_yet(model, tmp_path, capsys):
    trainer(model, tmp_path, schedule="constant", steps=3).train()
    ended(model, tmp_path, 5, resume=True, schedule="constant", steps=6)
    assert "was of step 3, and the run goes on to step 6; it is now model-000003" in capsys.readouterr().out
    assert not (tmp_path / "summary.json").exists()
    assert find_checkpoint(tmp_path).step == 5
    assert find_checkpoint(tmp_path / "model-000003").step == 3


def test_going_on_from_an_earlier_one_sets_later_ones_aside(model, tmp_path, capsys):
    trainer(model, tmp_path / "whole").train()
    ended(model, tmp_path / "run", 4)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "000009.unfinished").mkdir()
    again = trainer(model, tmp_path / "run", resume=str(checkpoints / "000002"), keep_checkpoints=1)
    again.train()
    assert (
        "000004 is later than step 2, after which the run goes on; it is now 000004.aside-1" in capsys.readouterr().out
    )
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert newest_whole(checkpoints)[0].name == "000004"
    assert not (checkpoints / "000009.unfinished").exists()


def test_a_damaged_later_one_does_not_hide_those_still_to_come(model, tmp_path):
    ended(model, tmp_path, 4, save_every=2)
    (tmp_path / "checkpoints" / "000004" / STATE).write_bytes(b"half")
    run = trainer(model, tmp_path, save_every=3, keep_checkpoints=1)
    run.train(True)  # from 2: 3 is written, and is the newest
    assert newest_whole(tmp_path / "checkpoints")[0].name == "000003"


def test_garbled_lines_of_a_crash_are_left_out(model, tmp_path):
    trainer(model, tmp_path / "whole").train()
    ended(model, tmp_path / "run", 3)
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'\0\0\0\xff\n{"step": 4, "rew')
    trainer(model, tmp_path / "run").train(True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_model_that_cannot_be_written_is_told_with_the_way_on(model, tmp_path):
    run = Trainer(model, [likes_a], ROWS, config=settings(tmp_path) | {"eval": {}})
    (tmp_path / "model.unfinished").write_text("a file in the way")
    with pytest.raises(WorkStopped, match=r"the model could not be written: .*000004; --resume goes on from it"):
        run.train()
