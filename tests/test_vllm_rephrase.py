"""Rephrasing against a real `vllm serve` of SmolLM2, as a user starts both."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROGRAMS = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
COUNT = 20


@pytest.fixture(scope="module")
def endpoint(smollm2, tmp_path_factory):
    """The address of the server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path_factory.mktemp("served") / "log.txt"
    with log.open("w") as file:
        server = subprocess.Popen(
            # what `vllm serve` runs; that script itself asks for a distribution that the CPU's is not
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", smollm2,
             "--served-model-name", "smollm2", "--port", str(port),
             "--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "20"],
            stdout=file, stderr=subprocess.STDOUT, env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 400
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_twenty_questions_from_ids_to_file(endpoint, tmp_path):
    """A model this small can only put a word before a question; the rest is rejected with its reason."""
    train = (ROOT / "recipes" / "quickstart" / "train.jsonl").read_text().splitlines()[:COUNT]
    rows = [{"id": f"q{i}", **{k: json.loads(line)[k] for k in ("question", "answer")}} for i, line in enumerate(train)]
    data, out = tmp_path / "data.jsonl", tmp_path / "out.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "wording.txt").write_text('Repeat the following sentence, beginning with "Please": {question}')
    command = [
        PROGRAMS / "branchwise", "rephrase", data, "--out", out, "-n", "1", "--writer", "openai:smollm2",
        "--base-url", endpoint, "--kinds", "wording", "--prompts", tmp_path, "--max-tokens", "40",
        "--temperature", "0.4", "--attempts", "2",
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stdout + first.stderr
    written = lines(out)
    assert [{k: v for k, v in row.items() if k != "rephrasings"} for row in written] == rows
    accepted, rejected = lines(tmp_path / "out.records.jsonl"), lines(tmp_path / "out.rejected.jsonl")
    assert [(r["id"], r["text"]) for r in accepted] == [
        (row["id"], text) for row in written for text in row["rephrasings"]
    ]
    assert accepted and all(record["reason"] for record in rejected)
    assert all(r["served_by"] == "smollm2" and r["prompt_tokens"] > 10 and r["reply_tokens"] for r in accepted)
    with sqlite3.connect(tmp_path / "out.replies.sqlite") as store:
        (replies,) = store.execute("SELECT COUNT(*) FROM replies").fetchone()
    assert replies == len(accepted) + len(rejected) >= COUNT
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "0 requests sent" in again.stdout and lines(out) == written
