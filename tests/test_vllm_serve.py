"""Real vLLM servers, started by `branchwise serve`: weights by file and as adapters, killed and stopped in mid-step."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import vllm_cases as cases
import yaml

from branchwise import Trainer
from branchwise.config_engine import VllmServerConfig
from branchwise.rollout import vllm_server
from branchwise.rollout.engine import Sampling
from branchwise.rollout.vllm_server import VllmServers

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
LONG = Sampling(seed=7, temperature=0.8, max_thought_tokens=120, max_answer_tokens=100)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def settings(folder, url, **model):
    return {
        "model": {"path": str(folder / "model"), **model},
        "engine": {"kind": "vllm_server", "urls": [url]},
        "data": {"max_prompt_tokens": 64},
        "sampling": {"max_thought_tokens": 200, "max_answer_tokens": 100, "max_rows": 32, "dtype": "float32"},
        "train": {"output_dir": str(folder / "run")},
    }


class Serve:
    """`branchwise serve` in a process group of its own."""

    def __init__(self, folder, name, **model):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(settings(folder, self.url, **model)))
        self.log = (folder / f"{name}.log").open("w")
        source = "from branchwise.cli import main; main()"
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, "serve", str(file), "--port", str(self.port)],
            stdout=self.log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip

    def ready(self):
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2)
                return self
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(Path(self.log.name).read_text()[-3000:])

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def close(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    cases.llama().save_pretrained(folder / "model")
    tiny.tokenizer(tiny.CHAT).save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def servers(folder):
    """Two for full weights, one for adapters."""
    started = [Serve(folder, "one"), Serve(folder, "two"), Serve(folder, "lora", lora={"r": 4})]
    try:
        yield [server.ready() for server in started]
    finally:
        for server in started:
            if server.process.poll() is None:
                server.close()


@pytest.fixture
def engine(tmp_path):
    made = []

    def engine(policy, *servers, **changes):
        made.append(
            VllmServers(
                policy,
                tiny.tokenizer(),
                settings=VllmServerConfig(urls=[s.url for s in servers], **({"patience": 60, "timeout": 60} | changes)),
                folder=str(tmp_path / "weights"),
                dtype=torch.float32,
                stop=frozenset([1]),
                room=32,
            )
        )
        return made[-1]

    yield engine
    for e in made:
        e.close()


def served_logprobs(server, model):
    body = {"model": model, "prompt": cases.FIXED, "max_tokens": 1, "prompt_logprobs": 0, "logprobs": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    entries = answer["choices"][0]["prompt_logprobs"][1:]
    return np.array([entry[str(i)]["logprob"] for entry, i in zip(entries, cases.FIXED[1:])])


def test_twenty_updates_by_file(servers, engine):
    policy = cases.llama()
    e = engine(policy, *servers[:2])
    for _ in range(20):
        cases.updated(policy)
        e.sync(policy)
        for server in e.servers:
            np.testing.assert_allclose(served_logprobs(server, server.model), cases.fixed_logprobs(policy), atol=1e-3)
        assert cases.mismatch(policy, cases.grown(e)) < 1e-3


def test_twenty_updates_of_an_adapter(servers, engine):
    policy = cases.lora(cases.llama())
    e = engine(policy, servers[2])
    for _ in range(20):
        cases.updated(policy)
        e.sync(policy)
        np.testing.assert_allclose(served_logprobs(servers[2], "policy"), cases.fixed_logprobs(policy), atol=1e-3)
        assert cases.mismatch(policy, cases.grown(e)) < 1e-3
    with policy.disable_adapter():
        base = cases.fixed_logprobs(policy)
    np.testing.assert_allclose(served_logprobs(servers[2], e.servers[0].model), base, atol=1e-4)
    assert np.abs(base - cases.fixed_logprobs(policy)).max() > 0.1


def test_batches_sampled_ahead_are_stale_by_one_and_corrected(servers, folder, tmp_path):
    rows = [{"question": f"{a}+{b}=?", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (2, 2), (5, 1))]

    def likes_a(completion_ids, **_):
        return [ids.count(21) / len(ids) for ids in completion_ids]

    config = settings(folder, servers[0].url)
    config["tree"] = {"thoughts": 4, "answers": 2}
    config["sampling"] |= {"max_thought_tokens": 12, "max_answer_tokens": 5}
    config["algorithm"] = {"correction": 2.0}
    config["train"] = {
        "output_dir": str(tmp_path), "steps": 5, "questions": 3, "learning_rate": 1e-3, "async_depth": 1,
        "precision": "float32", "device": "cpu",
    }  # fmt: skip
    before = threading.active_count()
    Trainer(config["model"]["path"], [likes_a], rows, config=config).train()
    assert threading.active_count() <= before + 1  # the rewards' loop may stay
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["staleness"] for line in lines] == [0, 1, 1, 1, 1]
    assert lines[0]["max/mismatch"] < 1e-3 < lines[-1]["max/mismatch"]
    assert all("correction" in line and "seconds/waiting" in line for line in lines)
    tree = json.loads((tmp_path / "trees" / "000003.jsonl").read_text().splitlines()[0])
    assert tree["staleness"] == 1


def grow_while(engine, act, trees):
    """Grow, and do something to the servers once requests are on their way."""
    timer = threading.Timer(0.3, act)
    timer.start()
    try:
        return cases.grown(engine, LONG, thoughts=6, answers=4, trees=trees)
    finally:
        timer.join()


def whole(trees, policy):
    for tree in trees:
        assert len(tree.children[0]) == 6
        for place in tree.children[0]:
            assert len(tree.children[place]) == (4 if tree.nodes[place].finish == "marker" else 0)
    assert cases.mismatch(policy, trees) < 1e-3


def test_servers_stopped_and_killed_in_mid_step(servers, engine, monkeypatch, caplog):
    monkeypatch.setattr(vllm_server, "HEALTH", 3.0)
    policy = cases.llama()
    one, two, _ = servers
    e = engine(policy, one, two)
    prompts = [[7 + (i + j) % 15 for j in range(8)] for i in range(12)]

    trees = grow_while(e, lambda: one.signal(signal.SIGSTOP), cases.forest(prompts))
    whole(trees, policy)
    assert f"server {one.url} is left out" in caplog.text

    one.signal(signal.SIGCONT)
    cases.updated(policy)
    e.sync(policy)
    deadline = time.monotonic() + 90
    while e.metrics()["servers"] < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert e.metrics()["servers"] == 2 and f"server {one.url} is back" in caplog.text
    np.testing.assert_allclose(served_logprobs(one, e.servers[0].model), cases.fixed_logprobs(policy), atol=1e-3)

    trees = grow_while(e, lambda: two.signal(signal.SIGKILL), cases.forest(prompts))
    whole(trees, policy)
    assert f"server {two.url} is left out" in caplog.text
