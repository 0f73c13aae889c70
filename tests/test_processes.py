"""Several processes (gloo) give the gradient, the weights and the metrics of one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import write
from short_runs import contents
from warm import start_two

SCRIPT = Path(__file__).with_name("process_update.py")


def run(out, processes, *overrides):
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    subprocess.run([*launcher, SCRIPT, out, *overrides], check=True, timeout=300, capture_output=True)
    return torch.load(out)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("algorithm.aggregation=token", "algorithm.scale=batch")])
def test_two_processes_equal_one(tmp_path, overrides):
    alone = run(tmp_path / "1.pt", 1, *overrides)
    together = run(tmp_path / "2.pt", 2, *overrides)
    assert together["size"] == 2
    torch.testing.assert_close(together["weights"], alone["weights"], rtol=1e-5, atol=1e-7)
    assert together["norms"] == pytest.approx(alone["norms"], rel=1e-5)
    assert together["stats"] == pytest.approx(alone["stats"], rel=1e-4, abs=1e-5)
    assert together["tokens"] >= alone["tokens"]


def lines(folder):
    file = folder / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_two_processes_end_at_one_step_when_told_to(warm, tmp_path, told):
    files = {name: write(tmp_path, tmp_path / name, train={"steps": 30, "save_every": 0}) for name in ("whole", "run")}
    assert [command.wait() for command in start_two(warm, "train", files["whole"])] == [0, 0]
    pair = start_two(warm, "train", files["run"])
    while len(lines(tmp_path / "run")) < 3 and pair[0].running:
        time.sleep(0.01)
    for rank in told:
        pair[rank].send(signal.SIGTERM)
    assert [command.wait() for command in pair] == [143, 143], [command.output for command in pair]
    last = json.loads(lines(tmp_path / "run")[-1])["step"]
    assert 3 <= last < 30
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name == f"{last:06d}"
    assert f"The last good checkpoint is {checkpoint}" in pair[0].output
    again = start_two(warm, "train", files["run"], "--resume")
    assert [command.wait() for command in again] == [0, 0], [command.output for command in again]
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_an_error_is_told_though_a_signal_ends_the_other_process(warm, tmp_path):
    config = write(tmp_path, train={"steps": 5, "save_every": 0})
    pair = start_two(warm, "train", config, first="process_faults:signal_and_error")
    assert [command.wait() for command in pair] == [143, 1], [command.output for command in pair]
    assert "the questions ran away" in pair[1].output
    assert f"The last good checkpoint is {tmp_path}/run/checkpoints/000002" in pair[0].output


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [("loss", 0), ("sampler", 1)])
def test_what_is_not_finite_on_one_process_concerns_both(warm, tmp_path, fault, code):
    config = write(tmp_path, train={"steps": 5})
    spoil = f"process_faults:{fault}_of_rank_1"
    with_fault = start_two(warm, "train", config, first=spoil)
    assert [command.wait() for command in with_fault] == [code, code], [command.output for command in with_fault]
    if fault == "loss":
        assert [json.loads(line)["not_finite_updates"] for line in lines(tmp_path / "run")] == [0, 0, 1, 0, 0]
        kept = json.loads((tmp_path / "run" / "not_finite" / "000003.json").read_text())
        assert [(fault["process"], fault["update"]) for fault in kept["where"]] == [(1, 1)]
        assert len(kept["trees"]) == 2
    else:
        assert [json.loads(line)["step"] for line in lines(tmp_path / "run")] == [1, 2]
        assert "the sampler's logits are not finite" in with_fault[1].output
        assert f"The last good checkpoint is {tmp_path}/run/checkpoints/000002" in with_fault[0].output
