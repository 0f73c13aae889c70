"""Several processes (gloo) give the gradient, the weights and the metrics of one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
