"""A long run of a tiny model: memory stays, and no process, file or thread is left over."""

import json
import time
from pathlib import Path

import psutil
import pytest
from commands import write

SHAPE = {
    "tree": {"thoughts": 2, "answers": 1, "rephrasings": 0, "uniform": "keep", "marker": None},
    "sampling": {"max_thought_tokens": 1, "max_answer_tokens": 2, "kv_memory_gb": 1},
    "algorithm": {"pool": "phrasing", "kl": 0.01},
}
SETTLED, MOST = 200, 1.02


def watched(command, metrics, every):
    """Steps, resident bytes, open files, threads and children of a training, every so many steps; and its children."""
    seen, started, lines, due = [], set(), 0, every
    process = psutil.Process(command.pid)
    with metrics.open() as file:
        while command.running:
            lines += sum(1 for line in file if line.endswith("\n"))
            if lines >= due:
                try:
                    children = process.children(recursive=True)
                    counts = process.num_fds(), process.num_threads(), len(children)
                    seen.append((lines, process.memory_info().rss, *counts))
                    started |= set(children)
                except psutil.Error:
                    break
                due = lines + every
            time.sleep(0.02)
    return seen, started


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_memory_files_threads_and_processes_stay_over_2000_steps(warm, tmp_path):
    train = {"steps": 2000, "questions": 1, "save_every": 100, "keep_models": False}
    config = write(tmp_path, train=train, **SHAPE)
    begun = time.monotonic()
    command = warm.start("train", config)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() and command.running:
        time.sleep(0.05)
    seen, started = watched(command, metrics, 50)
    assert command.wait() == 0, command.output
    settled = [row for row in seen if row[0] >= SETTLED]
    (_, first, *counts), growth = settled[0], [row[1] / settled[0][1] for row in settled]
    print(
        f"{time.monotonic() - begun:.0f} s; {first / 1e6:.0f} MB after step {settled[0][0]}, then × {min(growth):.4f} "
        f"to × {max(growth):.4f}; files, threads, processes: {sorted({tuple(row[2:]) for row in settled})}"
    )
    assert settled[-1][0] > 1900
    assert max(growth) < MOST
    # a file that is being written may be open as it is looked at
    assert all(abs(row[2] - counts[0]) <= 2 and list(row[3:]) == counts[1:] for row in settled)
    assert started and not any(process.is_running() for process in started)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2000
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failed_saves"] == 0
    assert not list(Path(tmp_path / "run").rglob("*.unfinished"))
