"""The engine of servers against real HTTP that fails: no tree is lost, none is scored by mistake, the log says why."""

import logging
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tiny
import torch
import yaml
from fault_server import EOS, FaultServer, completion

from branchwise import ConfigError
from branchwise.config_engine import VllmServerConfig
from branchwise.rollout import server as one_server
from branchwise.rollout import vllm_server
from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.vllm_server import NoServer, VllmServers
from branchwise.tree import Question, Tree, prompt_node

SAMPLING = Sampling(seed=3, max_thought_tokens=12, max_answer_tokens=6)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(vllm_server, "LOOK", 0.05)
    monkeypatch.setattr(one_server, "PAUSE", 0.05)


@pytest.fixture
def start():
    started = []

    def start(**settings):
        started.append(FaultServer(**settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def engine(tmp_path):
    made = []

    def engine(*servers, policy=None, room=8, **settings):
        settings = {"timeout": 1.0, "patience": 1.0} | settings
        urls = [server if isinstance(server, str) else server.url for server in servers]
        made.append(
            VllmServers(
                policy or tiny.llama(),
                tiny.tokenizer(),
                settings=VllmServerConfig(urls=urls, **settings),
                folder=str(tmp_path / "weights"),
                dtype=torch.float32,
                stop=frozenset([EOS]),
                room=room,
            )
        )
        return made[-1]

    yield engine
    for e in made:
        e.close()


def forest(count=6):
    trees = []
    for draw in range(count):
        tree = Tree(Question(str(draw), ("text",)), draw, 2)
        tree.add(prompt_node(0, [7, 8, 9, 10 + draw]))
        trees.append(tree)
    return trees


def grown(engine, thoughts=3, answers=2, sampling=SAMPLING, count=6):
    trees = forest(count)
    engine.grow([Limb(tree, 0, thoughts, answers) for tree in trees], sampling)
    return trees


def contents(trees):
    return [
        (n.kind, n.parent, n.index, n.ids_T.tolist(), n.logprobs_T.tolist(), n.sampled_T.tolist(), n.finish)
        for tree in trees
        for n in tree.nodes
    ]


@pytest.fixture
def expected(start, engine):
    """What one server that never fails gives."""
    return contents(grown(engine(start())))


def test_trees_hold_what_was_drawn_in_order(start, engine):
    server = start()
    trees = grown(engine(server))
    seeds = {}
    for body in server.asked:
        seeds.setdefault((tuple(body["prompt"]), body["n"]), []).append(body["seed"])
    finishes = set()
    for tree in trees:
        prompt = tree.nodes[0].ids_T.tolist()
        for k, place in enumerate(tree.children[0]):
            thought = tree.nodes[place]
            (seed,) = seeds[tuple(prompt), 3]
            ids, logprobs, finish, reason = completion(prompt, seed + k, 12, ["</think>"])
            assert (thought.index, thought.ids_T.tolist()) == (k, ids)
            np.testing.assert_allclose(thought.logprobs_T, logprobs, rtol=1e-6)
            assert thought.finish == ("marker" if reason else finish)
            finishes.add(thought.finish)
            assert len(tree.children[place]) == (2 if reason else 0)
            for m, leaf in enumerate(tree.children[place]):
                # two thoughts may be alike; their answers are not
                possible = [completion(prompt + ids, seed + m, 6, None)[0] for seed in seeds[tuple(prompt + ids), 2]]
                assert tree.nodes[leaf].ids_T.tolist() in possible
    assert finishes == {"marker", "stop", "length"}


def test_two_servers_share_the_work_and_give_the_same(start, engine, expected):
    one, two = start(delay=0.02), start(delay=0.02)
    assert contents(grown(engine(one, two, room=3))) == expected
    assert min(one.served, two.served) >= 4


@pytest.mark.parametrize("fault", ["kill", "500", "text", "short", "empty", "few", "nan", "abort", "hang"])
def test_a_server_that_fails_is_left_out_and_its_requests_go_elsewhere(start, engine, expected, caplog, fault):
    bad, good = start(), start()
    e = engine(bad, good)
    bad.faults = [fault] * 3
    with caplog.at_level(logging.WARNING, logger="branchwise"):
        assert contents(grown(e)) == expected
    assert f"server {bad.url} is left out" in caplog.text and good.url not in caplog.text
    metrics = e.metrics()
    assert metrics["server_faults"] >= 1 and metrics["server_retries"] >= 1


def test_a_server_whose_process_hangs_is_noticed_by_its_health(start, engine, expected, monkeypatch, caplog):
    monkeypatch.setattr(vllm_server, "HEALTH", 0.2)
    bad, good = start(), start()
    e = engine(bad, good, timeout=30)
    bad.faults, bad.healthy = ["hang"] * 9, False
    begun = time.monotonic()
    assert contents(grown(e)) == expected
    assert time.monotonic() - begun < 5
    assert "/weight_info: no answer" in caplog.text or "/health: no answer" in caplog.text


def test_a_server_that_is_well_again_comes_back_with_the_present_weights(start, engine, caplog):
    bad, good = start(), start()
    policy = tiny.llama()
    e = engine(bad, good, policy=policy)
    bad.faults = ["500"] * 2
    grown(e)
    with torch.no_grad():
        policy.lm_head.weight.add_(1.0)
    e.sync(policy)
    deadline = time.monotonic() + 10
    while e.metrics()["servers"] < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert torch.equal(bad.loaded[-1]["lm_head.weight"], policy.lm_head.weight)
    assert bad.version == good.version
    assert "is back, with the present weights" in caplog.text or bad.served


def test_a_server_that_hangs_while_it_takes_weights_does_not_hold_the_others_up(start, engine, monkeypatch):
    monkeypatch.setattr(vllm_server, "HEALTH", 0.2)
    stuck, good = start(), start()
    policy = tiny.llama()
    e = engine(stuck, good, policy=policy, timeout=30)
    stuck.healthy = False
    for _ in range(2):
        with torch.no_grad():
            policy.lm_head.weight.add_(1.0)
        begun = time.monotonic()
        e.sync(policy)
        assert time.monotonic() - begun < 3
        assert torch.equal(good.loaded[-1]["lm_head.weight"], policy.lm_head.weight)
    assert e.metrics()["servers"] == 1 and len(stuck.loaded) == 1


def test_a_server_started_anew_gives_nothing_before_it_has_the_weights(start, engine, expected, caplog):
    server = start()
    e = engine(server, patience=20)
    server.version, loads = "default", len(server.loaded)
    assert contents(grown(e)) == expected
    assert len(server.loaded) > loads and "it was started anew" in caplog.text


def test_a_server_that_starts_late_joins(start, engine, expected):
    good = start()
    late = start()
    late.close()
    e = engine(f"http://127.0.0.1:{late.port}", good)
    late = start(port=late.port)
    deadline = time.monotonic() + 10
    while e.metrics()["servers"] < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert late.loaded and contents(grown(e)) == expected


def test_no_server_left_is_an_error_after_a_while_and_leaves_the_trees_alone(start, engine):
    one, two = start(), start()
    e = engine(one, two, patience=0.5)
    one.close(), two.close()
    trees = forest()
    with pytest.raises(NoServer, match=r"no server for 0\.5 s .*branchwise serve"):
        e.grow([Limb(tree, 0, 3, 2) for tree in trees], SAMPLING)
    assert all(len(tree.nodes) == 1 for tree in trees)


def test_a_request_that_fails_everywhere_is_given_up(start, engine):
    server = start()
    e = engine(server, patience=60)
    server.faults = ["500"] * 1000
    with pytest.raises(NoServer, match=r"a request failed 5 times.*the engine is dead"):
        grown(e, count=1)


def test_no_server_at_the_start(engine, start):
    gone = start()
    gone.close()
    with pytest.raises(NoServer, match=r"no server for 0\.3 s"):
        engine(gone.url, patience=0.3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"weights": ["model.embed_tokens.weight"]}, "untied copy"),
    ],
)
def test_a_server_that_would_be_wrong_is_refused(start, engine, change, message):
    with pytest.raises(ConfigError, match=message):
        engine(start(**change), policy=tiny.llama(tie_word_embeddings=True))


def test_edges(start, engine):
    e = engine(start())
    for thoughts, answers, limits in ((1, 1, (12, 6)), (4, 3, (1, 1)), (2, 2, (200, 6))):
        sampling = Sampling(seed=1, max_thought_tokens=limits[0], max_answer_tokens=limits[1])
        for tree in grown(e, thoughts, answers, sampling):
            assert len(tree.children[0]) == thoughts
            for place in tree.children[0]:
                assert len(tree.children[place]) == (answers if tree.nodes[place].finish == "marker" else 0)
                assert all(len(tree.nodes[leaf].ids_T) <= limits[1] for leaf in tree.children[place])
    with pytest.raises(ValueError, match="256 positions"):
        grown(e, sampling=Sampling(seed=1, max_thought_tokens=250, max_answer_tokens=6))


def test_without_a_marker_and_closed_by_force(start, engine):
    e = engine(start())
    whole = grown(e, 3, 1, Sampling(seed=1, marker=None, max_thought_tokens=4, max_answer_tokens=3))
    assert {n.kind for tree in whole for n in tree.nodes} == {"phrasing", "response"}
    assert max(len(n.ids_T) for tree in whole for n in tree.nodes if n.kind == "response") == 7
    forced = grown(e, 3, 2, Sampling(seed=1, max_thought_tokens=3, max_answer_tokens=3, force_close=True))
    thoughts = [n for tree in forced for n in tree.nodes if n.kind == "thought"]
    assert {n.finish for n in thoughts} == {"marker", "forced"}
    for n in thoughts:
        assert n.ids_T[-1] == 5 and bool(n.sampled_T[-1]) == (n.finish == "marker")
    assert all(len(tree.children[place]) == 2 for tree in forced for place in tree.children[0])


def test_weights_are_sent_whole_and_old_files_go(start, engine, tmp_path):
    server = start()
    policy = tiny.llama(tie_word_embeddings=True)
    e = engine(server, policy=policy)
    e.sync(policy)
    assert torch.equal(server.loaded[-1]["lm_head.weight"], policy.model.embed_tokens.weight)
    assert set(server.loaded[-1]) == set(policy.state_dict())
    assert len(list((tmp_path / "weights").iterdir())) == 1
    e.close()
    assert not (tmp_path / "weights").exists()


def test_closing_ends_what_is_being_sampled(start, engine):
    server = start()
    e = engine(server, timeout=60)
    server.faults = ["hang"] * 100
    errors = []

    def grow():
        try:
            grown(e)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=grow)
    thread.start()
    time.sleep(0.2)
    e.close()
    thread.join(5)
    assert not thread.is_alive() and errors and not e.thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_an_interrupt_ends_the_run_at_once_and_leaves_nothing_behind(start, tmp_path, depth):
    server = start()
    tiny.save(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"question": "1+2=?", "answer": "3"}\n' * 4)
    config = {
        "model": {"path": str(tmp_path / "model")},
        "data": {"train": str(tmp_path / "rows.jsonl"), "max_prompt_tokens": 64},
        "engine": {"kind": "vllm_server", "urls": [server.url]},
        "algorithm": {"correction": 2.0},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5},
        "train": {"output_dir": str(tmp_path / "run"), "questions": 2, "async_depth": depth, "device": "cpu"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-c", "from branchwise.cli import main; main()", "train", str(tmp_path / "c.yaml")]
    server.faults = ["hang"] * 1000
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not server.asked and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert errors.strip().splitlines()[-1] == "interrupted"
    assert not (tmp_path / "run-weights").exists()
