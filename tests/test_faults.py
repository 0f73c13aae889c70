"""Faults injected one by one into the command: the right message, nothing lost, a non-zero exit where it stopped."""

import io
import random
import re
import resource
import subprocess
import time

import pytest
import yaml
from commands import write
from fault_server import FaultServer
from short_runs import contents

from branchwise.train.checkpoint import STATE


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory):
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    code, output = warm.run("train", write(folder))
    assert code == 0, output
    return contents(folder / "run")


@pytest.fixture
def mount(tmp_path):
    """Mounts small file systems, where that is allowed."""
    mounted = []

    def mount(folder, options):
        folder.mkdir(exist_ok=True)
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("file systems cannot be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def failed_saves(folder):
    return yaml.safe_load((folder / "summary.json").read_text())["failed_saves"]


# the disk


def test_a_disk_too_small_for_checkpoints_is_told_and_survived(warm, tmp_path, mount, whole):
    disk = mount(tmp_path / "disk", "size=12m")
    code, output = warm.run("train", write(tmp_path, disk / "run"))
    assert code == 0
    told = rf"no checkpoint could be written: it needs 0\.0\d+ GB and {disk}/run/checkpoints has [\d.e-]+ GB free"
    assert re.search(told, output), output
    assert failed_saves(disk / "run") == 5
    assert contents(disk / "run") == whole


def test_a_disk_that_is_full_stops_the_run_which_goes_on_when_there_is_room(warm, tmp_path, mount, whole):
    disk = mount(tmp_path / "disk", "size=40m")
    code, output = warm.run("train", write(tmp_path, disk / "run"), first="test_faults:fills_the_disk")
    assert code == 1
    assert "No space left on device" in output
    assert f"The last good checkpoint is {disk}/run/checkpoints/000002; --resume goes on from it" in output
    assert "Traceback" not in output
    (disk / "filler").unlink()
    assert warm.run("train", disk.parent / "run.yaml", "--resume")[0] == 0
    assert contents(disk / "run") == whole


def fills_the_disk():
    """Once two checkpoints are there."""
    from branchwise.train.run import Run

    stepped = Run.stepped

    def filled(run, step, *rest):
        if step == 3:
            disk = run.directory.path.parent
            with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
        stepped(run, step, *rest)

    Run.stepped = filled


def test_a_file_that_cannot_be_written_whole_is_no_checkpoint(warm, tmp_path, whole):
    """Files may have 100 KB: the state is cut within, the rest fits."""
    code, output = warm.run("train", write(tmp_path), first="test_faults:limits_files")
    assert code == 0, output
    assert "step 1: no checkpoint could be written:" in output and failed_saves(tmp_path / "run") == 5
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert contents(tmp_path / "run") == whole


def limits_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (110_000, 110_000))


def test_a_folder_that_cannot_be_written_to_is_refused(warm, tmp_path, mount):
    (tmp_path / "file").write_text("")
    code, output = warm.run("train", write(tmp_path, tmp_path / "file" / "run"))
    assert (code, output.splitlines()[-1]) == (
        2,
        f"train.output_dir: {tmp_path}/file/run: Not a directory; name another folder",
    )
    disk = mount(tmp_path / "disk", "ro,size=1m")
    code, output = warm.run("train", write(tmp_path, disk / "run"))
    assert (code, output.splitlines()[-1]) == (
        2,
        f"train.output_dir: {disk}/run: Read-only file system; name another folder",
    )


def test_checkpoints_that_cannot_be_written_are_told_and_survived(warm, tmp_path, whole):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file in their place")
    code, output = warm.run("train", write(tmp_path))
    assert code == 0, output
    assert "step 5: no checkpoint could be written: [Errno 20] Not a directory" in output
    assert failed_saves(tmp_path / "run") == 5
    assert contents(tmp_path / "run") == whole


def test_a_disk_that_turns_read_only_stops_the_run_and_it_goes_on_later(warm, tmp_path, mount, whole):
    disk = mount(tmp_path / "disk", "size=60m")
    config = write(tmp_path, disk / "run")
    code, output = warm.run("train", config, first="test_faults:turns_read_only")
    assert code == 1
    assert "Read-only file system" in output and "checkpoints/000002; --resume goes on from it" in output
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    assert warm.run("train", config, "--resume")[0] == 0
    assert contents(disk / "run") == whole


def turns_read_only():
    from branchwise.train.run import Run

    stepped = Run.stepped

    def turned(run, step, *rest):
        if step == 3:
            run.directory.close()  # nothing may be open for writing
            subprocess.run(["mount", "-o", "remount,ro", run.directory.path.parent], check=True)
            run.directory._metrics = io.StringIO()
        stepped(run, step, *rest)

    Run.stepped = turned


# checkpoints


@pytest.mark.parametrize("harm", ["truncated", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_or_refused(warm, tmp_path, whole, harm):
    config = write(tmp_path)
    assert warm.run("train", config)[0] == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    state = bytearray((checkpoints / "000005" / STATE).read_bytes())
    if harm == "flipped":
        state[random.Random(0).randrange(len(state))] ^= 16
    (checkpoints / "000005" / STATE).write_bytes(state[: -1 if harm == "truncated" else None])
    code, output = warm.run("train", config, "--resume-from", checkpoints / "000005")
    assert code == 2
    assert output.splitlines()[-1].startswith(
        f"train.resume: {checkpoints}/000005 is damaged: state.pt is not what was written; name another"
    )
    code, output = warm.run("train", config, "--resume")
    assert code == 0
    assert f"warning: {checkpoints}/000005 is damaged and passed over: state.pt is not what was written" in output
    assert f"resumed from {checkpoints}/000004, after step 4" in output
    assert contents(tmp_path / "run") == whole


# reward functions


def test_reward_workers_that_are_killed_lose_nothing(warm, tmp_path, whole):
    config = write(tmp_path, reward="likes_a_though_killed")
    code, output = warm.run("train", config, env={"LETTERS_CALLS": str(tmp_path / "calls")})
    assert code == 0, output
    assert (tmp_path / "run" / "log.txt").read_text().count("a reward worker was killed from outside") == 3
    assert renamed(contents(tmp_path / "run")) == whole


def renamed(values):
    return eval(repr(values).replace("likes_a_though_killed", "likes_a"))


def test_reward_workers_that_are_killed_again_and_again_stop_the_run(warm, tmp_path, whole):
    config = write(tmp_path, reward="killed_from_the_fourth_call_on")
    code, output = warm.run("train", config, env={"LETTERS_CALLS": str(tmp_path / "calls")})
    assert code == 2
    assert "killed_from_the_fourth_call_on: its worker process died (signal SIGKILL)" in output
    assert "The last good checkpoint is" in output and "Traceback" not in output


# the engine


def served(folder, server, **train):
    return write(
        folder,
        engine={"kind": "vllm_server", "urls": [server.url], "patience": 0.5, "timeout": 2.0},
        algorithm={"pool": "question", "correction": 2.0},
        data={"train": str(folder / "rows.jsonl"), "max_prompt_tokens": 64},
        train=train,
    )


def without_staleness(values):
    metrics, trees, weights = values
    trees = {name: text.replace('"staleness":1', '"staleness":0') for name, text in trees.items()}
    return (
        [{k: v for k, v in line.items() if "stale" not in k and "server" not in k} for line in metrics],
        trees,
        weights,
    )


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_an_engine_that_dies_stops_the_run_and_nothing_is_lost(warm, tmp_path, depth):
    server = FaultServer(delay=0.4)
    (tmp_path / "whole").mkdir()
    try:
        assert warm.run("train", served(tmp_path / "whole", server, async_depth=depth, steps=8))[0] == 0
        config = served(tmp_path, server, async_depth=depth, save_every=0, steps=8)
        command, asked = warm.start("train", config), len(server.asked)
        while len(read_lines(tmp_path / "run" / "metrics.jsonl")) < 2 and command.running:
            time.sleep(0.01)
    finally:
        server.close()
    assert command.wait() == 1
    last = len(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert f"engine.urls: no server for 0.5 s ({server.url}: " in command.output
    assert f"The last good checkpoint is {tmp_path}/run/checkpoints/{last:06d}" in command.output
    assert "Traceback" not in command.output and asked
    server = FaultServer(port=server.port)
    try:
        code, output = warm.run("train", config, "--resume")
    finally:
        server.close()
    assert code == 0, output
    assert without_staleness(contents(tmp_path / "run")) == without_staleness(contents(tmp_path / "whole" / "run"))


def read_lines(file):
    return file.read_text().splitlines() if file.exists() else []


# the clock, and other processes


def test_a_clock_that_jumps_changes_nothing(warm, tmp_path, whole):
    code, output = warm.run("train", write(tmp_path), first="test_faults:jumps")
    assert code == 0, output
    assert contents(tmp_path / "run") == whole
    lines = [yaml.safe_load(line) for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert all(0 <= v < 60 for line in lines for k, v in line.items() if k.startswith("seconds"))
    assert all(int(text.split(":")[0].split()[-1]) < 60 for text in output.splitlines() if text.endswith("left"))


def jumps():
    """The wall clock goes a day back or forth each time it is asked for."""
    true, draw = time.time, random.Random(0)
    time.time = lambda: true() + 86400 * draw.choice((-1, 1))


def test_two_processes_on_one_run(warm, tmp_path, whole):
    config = write(tmp_path)
    first = warm.start("train", config, first="test_faults:slowly")
    while not (tmp_path / "run" / ".lock").exists() and first.running:
        time.sleep(0.01)
    for arguments in ((), ("--resume",)):
        code, output = warm.run("train", config, *arguments)
        assert code == 2
        assert output.splitlines()[-1] == (
            f"train.output_dir: another process is writing to {tmp_path}/run; wait for it, or name another folder"
        )
    assert first.wait() == 0
    assert contents(tmp_path / "run") == whole


def slowly():
    """A second or more for each step."""
    from branchwise.train.run import Run

    stepped = Run.stepped
    Run.stepped = lambda *arguments: (time.sleep(1), stepped(*arguments))[1]
