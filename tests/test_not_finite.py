"""A loss or gradient that is NaN or infinite: the step is as if it had not been taken, and what it was is kept."""

import json
import math

import pytest
import tiny
import torch
from commands import ROWS
from letters import likes_a

from branchwise import Trainer
from branchwise.errors import WorkStopped
from branchwise.policy.policy import Policy
from branchwise.rollout.draw import draw
from branchwise.rollout.engine import Sampling


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def trainer(model, folder, **train):
    config = {
        "tree": {"thoughts": 2, "answers": 2, "rephrasings": 1, "uniform": "resample"},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 6, "max_answer_tokens": 3, "kv_memory_gb": 1},
        "train": {
            "output_dir": str(folder), "steps": 6, "questions": 2, "learning_rate": 1e-2, "schedule": "linear",
            "precision": "float32", "device": "cpu", "save_every": 0, **train,
        },
    }  # fmt: skip
    return Trainer(model, [likes_a], ROWS, config=config)


def state(run):
    """Weights, optimizer and schedule."""
    weights = {name: p.detach().clone() for name, p in run.policy.model.named_parameters()}
    optimizer = {i: {k: v.clone() for k, v in of.items()} for i, of in run.optimizer.state_dict()["state"].items()}
    return weights, optimizer, run.scheduler.state_dict()


def assert_same(a, b):
    assert all(torch.equal(a[0][name], b[0][name]) for name in a[0])
    assert a[1].keys() == b[1].keys()
    assert all(torch.equal(a[1][i][key], b[1][i][key]) for i in a[1] for key in a[1][i])
    assert a[2] == b[2]


class Spoilt(Trainer):
    """What is forwarded in some steps gives NaN or an infinite gradient."""

    def collect(self, step, clock):
        self.step = step
        self.states = [*getattr(self, "states", []), state(self)]
        return super().collect(step, clock)


@pytest.fixture
def spoil(monkeypatch):
    def spoil(run, steps, what="loss"):
        """In these steps the second scored token of a pack is NaN, or the gradient through it is infinite."""
        run.__class__ = Spoilt
        logprobs = Policy.logprobs

        def spoilt(policy, given, entropy=False):
            logp_S, entropy_S = logprobs(policy, given, entropy)
            if policy is not run.policy or run.step not in steps or not torch.is_grad_enabled():
                return logp_S, entropy_S
            if what == "loss":
                logp_S = torch.where(torch.arange(len(logp_S)) == 1, math.nan, logp_S)
            else:
                logp_S.register_hook(lambda g_S: g_S * math.inf)
            return logp_S, entropy_S

        monkeypatch.setattr(Policy, "logprobs", spoilt)

    return spoil


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_step_is_as_if_not_taken_and_the_batch_is_kept(model, tmp_path, spoil, capsys, what):
    run = trainer(model, tmp_path)
    spoil(run, {3}, what)
    run.train()
    assert_same(run.states[3], run.states[2])  # before step 4 as before step 3
    with pytest.raises(AssertionError):
        assert_same(run.states[2], run.states[1])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["not_finite_updates"] for line in lines] == [0, 0, 1, 0, 0, 0]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert "step 3: a loss or gradient was not finite" in capsys.readouterr().out
    (file,) = (tmp_path / "not_finite").iterdir()
    kept = json.loads(file.read_text())
    assert file.name == "000003.json" and kept["step"] == 3
    (fault,) = kept["where"]
    assert (fault["update"], fault["process"]) == (1, 0)
    logged = [json.loads(line) for line in (tmp_path / "trees" / "000003.jsonl").read_text().splitlines()]
    assert [[n["ids"] for n in tree["nodes"]] for tree in kept["trees"]] == [
        [n["ids"] for n in tree["nodes"]] for tree in logged
    ]
    nodes = [node for tree in kept["trees"] for node in tree["nodes"] if node["kind"] != "phrasing"]
    assert any(node["advantage"] for node in nodes) and all(node["weight"] > 0 for node in nodes)
    if what == "loss":
        assert fault["pack"] == 1 and math.isnan(fault["loss"])
        assert fault["not_finite"] == {"policy_logprob": 1}
        told = [*fault["first"]["context"], fault["first"]["token"]]
        paths = [_path(tree["nodes"], place) for tree in kept["trees"] for place in range(len(tree["nodes"]))]
        assert any(path[: len(told)] == told for path in paths)
    else:
        assert len(fault["not_finite"]) == 20 < fault["parameters"]  # so many are named


def _path(nodes, place):
    """A node's ids after those of the original question's prompt and of what is above it."""
    node = nodes[place]
    if node["parent"] < 0:
        return nodes[0]["ids"]
    return _path(nodes, node["parent"]) + node["ids"]


def test_so_many_in_a_row_stop_the_run_and_the_last_good_checkpoint_is_named(model, tmp_path, spoil):
    run = trainer(model, tmp_path, max_not_finite=2, updates=1)
    spoil(run, {2, 4, 5})  # one alone goes by
    with pytest.raises(WorkStopped, match=r"2 optimizer steps in a row was not finite") as stop:
        run.train()
    assert str(stop.value).endswith(
        f"The last good checkpoint is {tmp_path}/checkpoints/000005; --resume goes on from it"
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert sorted(file.name for file in (tmp_path / "not_finite").iterdir()) == [f"00000{i}.json" for i in (2, 4, 5)]
    again = trainer(model, tmp_path, max_not_finite=2)
    assert again.train(resume_from_checkpoint=True)["steps"] == 6


def test_a_sampler_without_finite_logits_ends_the_run_by_name(model, tmp_path, monkeypatch):
    run = trainer(model, tmp_path, save_every=1)
    run.__class__ = Diverging
    with pytest.raises(WorkStopped, match=r"the sampler's logits are not finite.*checkpoints/000002; --resume"):
        run.train()


class Diverging(Trainer):
    """Its weights are NaN from the sampling of the third step on."""

    def collect(self, step, clock):
        if step == 3:
            with torch.no_grad():
                next(self.policy.model.parameters()).fill_(math.nan)
        return super().collect(step, clock)


def test_weights_that_are_not_finite_do_not_become_a_checkpoint(model, tmp_path):
    run = trainer(model, tmp_path, save_every=1)
    run.__class__ = Broken
    with pytest.raises(WorkStopped, match=r"after step 3 the weights are not finite \(model.embed.*\)\. .*000002"):
        run.train()
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == ["000001", "000002"]


class Broken(Trainer):
    """Its weights are NaN from the end of the third step on."""

    def collect(self, step, clock):
        batch = super().collect(step, clock)
        if step == 3:
            self.scheduler.step = self._break
        return batch

    def _break(self):
        with torch.no_grad():
            next(self.policy.model.parameters()).fill_(math.nan)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_sampler_sees_what_is_not_finite(temperature, bad):
    logits_RV = torch.zeros(2, 5)
    logits_RV[1, 3] = bad
    with pytest.raises(FloatingPointError):
        draw(logits_RV, torch.full((2,), 0.5), Sampling(seed=0, temperature=temperature))
