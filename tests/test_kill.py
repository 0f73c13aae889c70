"""SIGKILL at any moment: what was saved is whole, and the run ends with the bits of one that nothing happened to."""

import random
import time
from pathlib import Path
from signal import SIGKILL

import pytest
from commands import write
from short_runs import contents

from branchwise.train.checkpoint import damage, newest_whole, write_checkpoint

KILLS = 25


def begun(folder):
    """Names of the checkpoints that are being written."""
    return {file.name for file in folder.glob("checkpoints/*.unfinished")} if folder.is_dir() else set()


def kill(command, folder, draw, saving):
    """At a random moment of the run, or of its first, second or third saving; whether a checkpoint was left half."""
    before = begun(folder)
    if saving:
        seen, wanted = set(), draw.randrange(1, 4)
        while len(seen) < wanted and command.running:
            seen |= begun(folder) - before
        time.sleep(draw.uniform(0, 0.02))
    else:
        time.sleep(draw.uniform(0, 1.5))
    command.send(SIGKILL)
    assert command.wait() == -SIGKILL, command.output
    return bool(begun(folder))


@pytest.mark.slow
def test_a_run_killed_25_times_ends_as_the_run_in_one_go(warm, tmp_path):
    data = {"eval": str(tmp_path / "rows.jsonl")}
    files = {
        name: write(tmp_path, tmp_path / name, data=data, eval={"every": 5}, train={"steps": 250})
        for name in ("whole", "run")
    }
    assert warm.run("train", files["whole"])[0] == 0
    draw, half, steps = random.Random(0), 0, []
    for number in range(KILLS):
        command = warm.start("train", files["run"], "--resume")
        half += kill(command, tmp_path / "run", draw, saving=number % 2 == 0)
        steps.append(max((int(f.name) for f in tmp_path.glob("run/checkpoints/*") if f.name.isdigit()), default=0))
    assert half >= KILLS // 5, "the saving itself was to be hit"
    assert steps == sorted(steps)
    code, output = warm.run("train", files["run"], "--resume")
    assert code == 0, output
    assert f"resumed from {tmp_path}/run/checkpoints/{steps[-1]:06d}" in output
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    print(f"{half} of {KILLS} kills left a checkpoint half written; steps saved before each: {steps}")


def test_half_a_saving_killed_at_each_file_is_passed_over(tmp_path, warm):
    """A process that is killed in the middle of `write_checkpoint`, after each of its files."""
    folder = tmp_path / "checkpoints" / "000001"
    for files in range(1, 6):  # three files, the manifest, the folder's name
        command = warm.start(folder, files, first="test_kill:dies_within_a_checkpoint")
        assert command.wait() == -SIGKILL, command.output
        assert newest_whole(folder.parent) == (folder if files == 5 else None, [])


def test_a_folder_is_there_until_another_takes_its_place(tmp_path, monkeypatch):
    folder = tmp_path / "000001"
    write_checkpoint(folder, lambda place: (place / "a").write_text("first"))
    rename = Path.rename

    def fails(path, target):
        if path.suffix == ".unfinished":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Path, "rename", fails)
        write_checkpoint(folder, lambda place: (place / "a").write_text("second"))
    assert (folder / "a").read_text() == "first" and damage(folder) is None
    write_checkpoint(folder, lambda place: (place / "a").write_text("second"))
    assert (folder / "a").read_text() == "second" and damage(folder) is None
    assert list(tmp_path.iterdir()) == [folder]


def dies_within_a_checkpoint():
    """Write three files as a checkpoint, and die at the n-th syncing."""
    import os
    import sys
    from pathlib import Path

    from branchwise.train import checkpoint

    folder, left = Path(sys.argv[1]), [int(sys.argv[2])]
    sync = checkpoint.sync

    def counted(path):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), SIGKILL)
        sync(path)

    checkpoint.sync = counted
    checkpoint.write_checkpoint(folder, lambda place: [(place / name).write_text(name) for name in "abc"])
    os._exit(0)
