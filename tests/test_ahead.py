"""Batches sampled ahead: how stale they may be, and what becomes of errors."""

import json
import threading
import time

import pytest
import tiny
from commands import ROWS
from fault_server import FaultServer
from letters import likes_a
from short_runs import contents, ended, settings

from branchwise import Trainer
from branchwise.rollout.collect import Batch
from branchwise.train.ahead import Ahead
from branchwise.train.metrics import Stopwatch
from branchwise.tree import Question, Tree


class Recorder:
    """Stands where sampling is; notes which updates' weights each batch was sampled with."""

    def __init__(self, seconds=0.0):
        self.weights, self.used, self.seconds, self.running = 0, {}, seconds, False

    def collect(self, step, clock):
        self.running, self.used[step] = True, self.weights
        with clock("sampling"):
            time.sleep(self.seconds)
        assert self.used[step] == self.weights, "weights changed within a batch"
        self.running = False
        return Batch([Tree(Question("q", ("text",)), step, step)])


def run(recorder, depth, steps=6, update=0.0):
    seen, threads = [], threading.active_count()
    with Ahead(recorder.collect, steps, depth, print) as ahead:
        for step in range(1, steps + 1):
            batch = ahead.take(step, Stopwatch())
            assert batch.trees[0].step == step
            seen.append((step - 1 - recorder.used[step], batch.trees[0].staleness))
            time.sleep(update)
            with ahead.paused():
                assert not recorder.running
                recorder.weights = step
            ahead.updated(step)
    assert threading.active_count() == threads
    return seen


def test_depth_0_is_exact():
    assert run(Recorder(), 0) == [(0, 0)] * 6


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("sample", "update"), [(0.0, 0.02), (0.02, 0.0), (0.02, 0.02)])
def test_staleness_is_bounded_and_written_on_every_tree(depth, sample, update):
    seen = run(Recorder(sample), depth, update=update)
    assert all(true == told <= depth for true, told in seen)
    assert max(told for _, told in seen) >= 1


def test_sampling_and_update_overlap():
    begun = time.monotonic()
    run(Recorder(0.1), 1, steps=6, update=0.1)
    assert time.monotonic() - begun < 6 * 0.2 * 0.85


def test_an_error_of_the_thread_surfaces_where_its_batch_is_taken():
    def collect(step, clock):
        if step == 2:
            raise RuntimeError("no server")
        return Batch([])

    with Ahead(collect, 3, 1, print) as ahead:
        ahead.take(1, Stopwatch())
        ahead.updated(1)
        with pytest.raises(RuntimeError, match="no server"):
            ahead.take(2, Stopwatch())


def test_leaving_early_leaves_no_thread():
    threads, interrupted = threading.active_count(), threading.Event()

    def collect(step, clock):
        if step > 1 and interrupted.wait(30):
            raise RuntimeError("interrupted")
        return Batch([])

    with pytest.raises(KeyboardInterrupt), Ahead(collect, 100, 2, interrupted.set) as ahead:
        ahead.take(1, Stopwatch())
        raise KeyboardInterrupt
    assert threading.active_count() == threads


def three_are_ready(ahead):
    while len(ahead.state()["ready"]) < 3:
        time.sleep(0.001)


def test_what_was_sampled_ahead_is_part_of_the_state_and_comes_first():
    first, second = Recorder(), Recorder()
    with Ahead(first.collect, 9, 2, print) as ahead:
        ahead.take(1, Stopwatch())
        three_are_ready(ahead)
        ahead.updated(1)
        three_are_ready(ahead)
        with ahead.paused():
            state = ahead.state()
    with Ahead(second.collect, 9, 2, print) as ahead:
        ahead.restore(1, state)
        batches = []
        for step in (2, 3, 4):
            batches.append(ahead.take(step, Stopwatch()))
            ahead.updated(step)
    assert batches == [batch for batch, _, _ in state["ready"]]
    # each of its step, with what it was sampled after
    assert [batch.trees[0].staleness for batch in batches] == [1, 2, 2]
    assert min(second.used, default=5) == 5


def without_staleness(values):
    metrics, trees, weights = values
    lines = [{key: value for key, value in line.items() if "stale" not in key} for line in metrics]
    kept = [[json.loads(line) | {"staleness": 0} for line in text.splitlines()] for text in trees.values()]
    return lines, kept, weights


@pytest.mark.parametrize(("depth", "part"), [(1, "end"), (2, "end"), (1, "taken"), (1, "update")])
def test_a_run_that_sampled_ahead_goes_on_with_what_it_had(tmp_path, depth, part):
    """Its server answers by prompt and seed alone: the clock decides how stale a batch is, not what is in it."""
    model, server = str(tiny.save(tmp_path / "model")), FaultServer()

    def config(name):
        sections = settings(tmp_path / name, steps=8, async_depth=depth, save_every=0)
        del sections["eval"]
        more = {"engine": {"kind": "vllm_server", "urls": [server.url]}, "data": {"max_prompt_tokens": 64}}
        return sections | more | {"algorithm": {"pool": "question", "kl": 0.05, "correction": 2.0}}

    def asked():
        requests = sorted(json.dumps(request, sort_keys=True) for request in server.asked)
        server.asked.clear()
        return requests

    try:
        Trainer(model, [likes_a], ROWS, config=config("whole")).train()
        whole = asked()
        ended(model, config("run"), 5, part=part)
        Trainer(model, [likes_a], ROWS, config=config("run")).train(resume_from_checkpoint=True)
        # nothing was lost; a batch begun after the last save is sampled again, the same
        assert set(asked()) == set(whole)
    finally:
        server.close()
    assert without_staleness(contents(tmp_path / "run")) == without_staleness(contents(tmp_path / "whole"))
