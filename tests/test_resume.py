"""A run that was interrupted and resumed is the run that was not, to the bit."""

import pytest
import tiny
import torch
from letters import likes_a
from short_runs import contents, ended, everything, trainer

from branchwise.config import ConfigError
from branchwise.train.checkpoint import MANIFEST, STATE, damage, newest_whole

STEPS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


BOTH = [(uniform, lora) for uniform in ("resample", "expand") for lora in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("uniform", "lora"), BOTH)
def test_a_run_ended_after_every_step_and_resumed_is_the_run_in_one_go(model, tmp_path, uniform, lora):
    changed = {"uniform": uniform, "lora": lora, "steps": STEPS, "save_every": 0}
    whole = trainer(model, tmp_path / "whole", **changed)
    whole.train()
    folder = tmp_path / "ended"
    for moment in range(2, STEPS):
        ended(model, folder, moment, resume=moment > 2, **changed)
    last = trainer(model, folder, **changed)
    last.train(resume_from_checkpoint=True)
    assert everything(last, folder) == everything(whole, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("uniform", "lora"), [("resample", True), ("expand", False)])
def test_from_each_checkpoint_a_run_ends_with_the_same_bits(model, tmp_path, uniform, lora):
    changed = {"uniform": uniform, "lora": lora, "steps": STEPS, "keep_checkpoints": 0}
    whole = trainer(model, tmp_path / "run", **changed)
    whole.train()
    expected = everything(whole, tmp_path / "run")
    for step in range(STEPS - 1, 0, -1):
        again = trainer(model, tmp_path / "run", **changed)
        again.train(tmp_path / "run" / "checkpoints" / f"{step:06d}")
        assert everything(again, tmp_path / "run") == expected, step


def test_a_run_ended_and_resumed_is_the_run_in_one_go(model, tmp_path):
    whole = trainer(model, tmp_path / "whole")
    whole.train()
    ended(model, tmp_path / "ended", 3, save_every=0)
    last = trainer(model, tmp_path / "ended", save_every=0)
    last.train(resume_from_checkpoint=True)
    assert everything(last, tmp_path / "ended") == everything(whole, tmp_path / "whole")


@pytest.mark.parametrize(
    ("part", "pack_tokens"), [("sampling", None), ("taken", None), ("update", None), ("update", 64)]
)
def test_a_run_ended_within_a_step_and_resumed_is_the_run_in_one_go(model, tmp_path, part, pack_tokens):
    changed = {"save_every": 0, "pack_tokens": pack_tokens}
    whole = trainer(model, tmp_path / "whole", **changed)
    whole.train()
    folder = tmp_path / "ended"
    assert ended(model, folder, 3, part=part, **changed) == [1, 2, 3]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert checkpoint.name == "000002"
    # trees that had been sampled are in the checkpoint: step 3 is sampled again only where its sampling was cut short
    again = ended(model, folder, 4, resume=True, part="update", **changed)
    assert again == ([3, 4] if part == "sampling" else [4])
    last = trainer(model, folder, **changed)
    last.train(resume_from_checkpoint=True)
    assert everything(last, folder) == everything(whole, tmp_path / "whole")


def test_a_batch_in_hand_is_kept_where_its_checkpoint_was_there_already(model, tmp_path, capsys):
    changed = {"save_every": 0, "keep_best": "reward"}
    whole = trainer(model, tmp_path / "whole", **changed)
    whole.train()
    folder = tmp_path / "ended"
    ended(model, folder, 3, **changed)
    assert ended(model, folder, 4, resume=True, part="update", **changed) == [4]
    assert ended(model, folder, 4, resume=True, part="update", **changed) == []
    assert [checkpoint.name for checkpoint in (folder / "checkpoints").iterdir()] == ["000003"]
    assert "there is no metric" not in capsys.readouterr().out
    last = trainer(model, folder, **changed)
    last.train(resume_from_checkpoint=True)
    assert everything(last, folder) == everything(whole, tmp_path / "whole")


def test_a_batch_that_has_changed_the_weights_is_finished(model, tmp_path):
    ended(model, tmp_path, 3, part="second update", save_every=0)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert checkpoint.name == "000003"


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
    with pytest.raises(ConfigError, match=f"train.resume: {last} is damaged: {STATE} is not what was written"):
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


def test_a_checkpoint_of_another_version_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr("branchwise.train.checkpoint.FORMAT", 0)
    ended(model, tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="the checkpoint is of another version of Branchwise"):
        trainer(model, tmp_path).train(resume_from_checkpoint=True)


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
    assert "step 2: no checkpoint could be written: [Errno 28]" in capsys.readouterr().out.replace("\n", " ")
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == ["000001", "000003"]


def test_two_processes_do_not_write_one_run(model, tmp_path):
    def second(completions, completion_ids, **_):
        with pytest.raises(ConfigError, match=r"train.output_dir: another process is writing to"):
            trainer(model, tmp_path).train()
        return likes_a(completions, completion_ids)

    trainer(model, tmp_path, second, steps=1).train()
