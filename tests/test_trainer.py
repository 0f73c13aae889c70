"""Whole runs of a tiny real model."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from branchwise import ConfigError, Trainer

ROWS = [{"question": f"{a}+{b}=?", "answer": str(a + b), "rephrasings": [f"{a} + {b}", f"{b}+{a}"]} for a, b in
        ((1, 2), (3, 4), (2, 2), (5, 1), (0, 7), (4, 4))]  # fmt: skip


def likes_a(completions, completion_ids, **_):
    """Share of the letter a among the tokens."""
    return [ids.count(21) / len(ids) for ids in completion_ids]


def never(completions, **_):
    return [0.0] * len(completions)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def settings(folder, **sections):
    base = {
        "tree": {"thoughts": 3, "answers": 2, "rephrasings": 2},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5},
        "train": {
            "output_dir": str(folder), "steps": 2, "questions": 3, "learning_rate": 1e-2, "precision": "float32",
            "device": "cpu",
        },
    }  # fmt: skip
    return {key: base.get(key, {}) | sections.get(key, {}) for key in base | sections}


def read_lines(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The folder and summary of a run with everything on."""
    folder = tmp_path_factory.mktemp("run")
    config = settings(folder, eval={"every": 1, "samples": 2}, train={"save_every": 1, "updates": 2, "epochs": 2},
                      algorithm={"kl": 0.1, "entropy": 0.01, "pool": "question"})  # fmt: skip
    config["train"] = settings(folder)["train"] | config["train"]
    trainer = Trainer(model, [likes_a], ROWS, ROWS[:2], config)
    return folder, trainer.train(), trainer


def test_a_run_leaves_its_config_versions_metrics_and_summary(run):
    folder, summary, _ = run
    assert yaml.safe_load((folder / "config.yaml").read_text())["tree"]["thoughts"] == 3
    assert json.loads((folder / "versions.json").read_text())["torch"] == torch.__version__
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines if "reward" in line] == [1, 2]
    assert [line["step"] for line in lines if "held_out/mean" in line] == [0, 1, 2]
    assert all(math.isfinite(v) for line in lines for v in line.values() if v is not None)
    step = next(line for line in lines if "reward" in line)
    for key in ("uniform/question", "uniform/phrasing", "grad_norm", "kl", "entropy", "mismatch", "tokens_per_second"):
        assert key in step
    assert summary == json.loads((folder / "summary.json").read_text())
    assert summary["updates"] == 8 and summary["held_out"]["before"]["n"] == 2


def test_every_tree_is_written_with_texts_rewards_and_advantages(run):
    folder, summary, _ = run
    trees = [tree for step in (1, 2) for tree in read_lines(folder / "trees" / f"{step:06d}.jsonl")]
    assert len(trees) == 6 and all(tree["question"]["answer"] for tree in trees)
    leaves = 0
    for tree in trees:
        parents = {node["parent"] for node in tree["nodes"]}
        assert next(n["text"] for n in tree["nodes"] if n["kind"] == "phrasing").startswith("<|user|>")
        for place, node in enumerate(tree["nodes"]):
            if node["kind"] == "phrasing":
                continue
            assert "advantage" in node and node["tokens"] > 0
            if place not in parents:
                leaves += 1
                assert 0 <= node["reward"] <= 1 and node["parts"] == {"likes_a": node["reward"]}
    assert leaves == summary["leaves"]


@pytest.mark.parametrize("name", ["model", "best", "checkpoints/000001"])
def test_saved_models_load_as_any_other_does(run, name):
    folder, _, trainer = run
    loaded = AutoModelForCausalLM.from_pretrained(folder / name)
    assert AutoTokenizer.from_pretrained(folder / name)("3+4")["input_ids"] == [9, 16, 10]
    if name == "model":
        for key, value in trainer.policy.model.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)


def test_the_same_seed_repeats_a_run_to_the_bit(model, tmp_path):
    weights, texts = [], []
    for name in ("one", "two"):
        trainer = Trainer(model, [likes_a], ROWS, config=settings(tmp_path / name))
        trainer.train()
        weights.append(trainer.policy.model.state_dict())
        texts.append((tmp_path / name / "trees" / "000002.jsonl").read_text())
    assert texts[0] == texts[1]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["grpo", "dr-grpo", "cispo", "rloo", "grpo-ma", "ta-grpo", "ta-grpo-ma"])
def test_every_method_learns_to_say_a(model, tmp_path, preset):
    config = {"preset": preset, **settings(tmp_path)}
    del config["tree"], config["algorithm"]
    config["train"] |= {"steps": 12, "questions": 4}
    Trainer(model, [likes_a], ROWS, config=config).train()
    rewards = [line["reward"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert rewards[-1] > rewards[0] + 0.15


def test_a_run_whose_pools_are_all_uniform_says_so_and_changes_nothing(model, tmp_path, capsys):
    trainer = Trainer(model, [never], ROWS, config=settings(tmp_path))
    before = {key: value.clone() for key, value in trainer.policy.model.state_dict().items()}
    summary = trainer.train()
    assert summary["updates"] == 0
    assert "every pool was uniform" in capsys.readouterr().out
    assert all(torch.equal(before[key], value) for key, value in trainer.policy.model.state_dict().items())


def test_missing_rewards_are_counted_and_told_with_their_reason(model, tmp_path, capsys):
    def fails(completions, **_):
        raise RuntimeError("the judge is asleep")

    config = settings(tmp_path, eval={"every": 1}, reward_limits={"max_failed": 1})
    summary = Trainer(model, [fails], ROWS, ROWS[:2], config).train()
    assert summary["missing_rewards"] == summary["leaves"] > 0 and summary["held_out"] == {}
    said = capsys.readouterr().out
    assert "rewards are missing: fails: RuntimeError: the judge is asleep" in said
    assert "held-out evaluation: 2 rewards are missing" in said and "or lacked rewards" in said


def test_what_functions_log_of_held_out_answers_is_no_steps(model, tmp_path):
    def told(completions, log_metric, **_):
        log_metric("count", len(completions))
        return [0.0] * len(completions)

    Trainer(model, [told], ROWS, ROWS[:2], settings(tmp_path, tree={"rephrasings": 0, "thoughts": 4})).train()
    counts = [line["rewards/count"] for line in read_lines(tmp_path / "metrics.jsonl") if "reward" in line]
    leaves = [line["leaves"] for line in read_lines(tmp_path / "metrics.jsonl") if "reward" in line]
    assert counts == leaves


def test_the_learning_rate_logged_is_the_steps_own(model, tmp_path):
    config = settings(tmp_path)
    config["train"] |= {"schedule": "linear", "steps": 4}
    Trainer(model, [likes_a], ROWS, config=config).train()
    rates = [line["learning_rate"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


def test_an_earlier_run_is_moved_aside(model, tmp_path, capsys):
    folder = tmp_path / "run"
    for steps in (2, 1, 1):
        config = settings(folder)
        config["train"] |= {"steps": steps}
        Trainer(model, [likes_a], ROWS, config=config).train()
    assert f"is now in {folder}.2" in capsys.readouterr().out
    found = [len(list((tmp_path / name / "trees").iterdir())) for name in ("run", "run.1", "run.2")]
    assert found == [1, 2, 1]


def test_trackers_get_every_metric(model, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = settings(tmp_path)
    config["train"] |= {"trackers": ["tensorboard"]}
    Trainer(model, [likes_a], ROWS, ROWS[:2], config).train()
    events = EventAccumulator(str(tmp_path / "branchwise"))
    events.Reload()
    scalars = events.Tags()["scalars"]
    assert {"reward", "uniform/question", "held_out"} <= set(scalars)
    assert [event.step for event in events.Scalars("reward")] == [1, 2]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("train", {"trackers": ["trackio"]}, r"train\.trackers: 'trackio' needs its package; pip install trackio"),
        ("train", {"device": "mps"}, r"train\.device: 'mps' is not there; set train\.device: auto"),
        ("eval", {"every": 2}, r"eval\.every: 2, but nothing is held out; set data\.eval"),
    ],
)
def test_what_is_not_there_is_refused_with_a_way_out(model, tmp_path, section, values, message):
    config = settings(tmp_path)
    config[section] = config.get(section, {}) | values
    with pytest.raises(ConfigError, match=message):
        Trainer(model, [likes_a], ROWS, config=config)


def test_a_models_name_is_taken_to_the_letter(tmp_path):
    folder = tiny.save(tmp_path / "123 # no comment")
    trainer = Trainer(str(folder), [likes_a], ROWS, config=settings(tmp_path / "run"))
    assert trainer.config.model.path == str(folder)


def test_a_run_stops_when_too_many_rewards_fail(model, tmp_path):
    def fails(completions, **_):
        raise RuntimeError("the judge is asleep")

    with pytest.raises(ConfigError, match=r"reward_limits.max_failed: 0.5 allows: fails: RuntimeError: the judge"):
        Trainer(model, [fails], ROWS, config=settings(tmp_path)).train()


def test_a_reward_without_spread_over_many_steps_is_told(model, tmp_path, capsys):
    config = settings(tmp_path, reward_limits={"flat_steps": 2})
    Trainer(model, [never, likes_a], ROWS, config=config).train()
    told = " ".join(capsys.readouterr().out.split())
    assert "reward 'never' was 0 for every response of 2 steps" in told
    assert "reward 'likes_a'" not in told


def test_held_out_questions_that_are_trained_on_are_told(model, tmp_path):
    assert (
        "warning: 2 of 3 held-out questions are trained on, too"
        in Trainer(model, [likes_a], ROWS, [*ROWS[:2], {"question": "9+9=?", "answer": "18"}], settings(tmp_path)).notes
    )


def test_weights_too_narrow_to_train_are_told(model, tmp_path):
    config = settings(tmp_path, model={"dtype": "bfloat16"})
    assert any("bfloat16 weights are trained" in note for note in Trainer(model, [likes_a], ROWS, config=config).notes)
    config["model"]["lora"] = {"r": 2}
    assert not any("warning" in note for note in Trainer(model, [likes_a], ROWS, config=config).notes)


def test_nothing_to_train_on_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.train: missing"):
        Trainer(model, [likes_a], config=settings(tmp_path))


def command(file, *arguments):
    branchwise = Path(sys.executable).with_name("branchwise")
    return subprocess.run([branchwise, "train", file, *arguments], capture_output=True, text=True, timeout=300)


@pytest.fixture
def config_file(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "my.py").write_text(
        "def a(completion_ids, **_):\n    return [i.count(21) / len(i) for i in completion_ids]\n"
        "def never(completions, **_):\n    return [0.0] * len(completions)\n"
    )
    values = settings(tmp_path / "run")
    values |= {"model": {"path": model}, "data": {"train": str(tmp_path / "rows.jsonl")}}
    values["rewards"] = [f"{tmp_path}/my.py:a"]
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_the_command_trains_from_a_file_and_shows_plain_lines(config_file):
    result = command(config_file, "train.steps=2")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.startswith("step 1/2 · reward 0.") and "uniform" in line and "tok/s" in line for line in lines)
    assert "\x1b" not in result.stdout and result.stderr == ""
    assert (config_file.parent / "run" / "model" / "model.safetensors").exists()


def test_a_model_that_is_not_there_ends_with_2_and_names_it(config_file):
    absent = config_file.parent / "absent"
    result = command(config_file, f"model.path={absent}")
    assert result.returncode == 2
    assert result.stderr.startswith(f"model.path: cannot load '{absent}'") and len(result.stderr.splitlines()) == 1


def test_control_c_ends_with_130_and_a_word(config_file):
    branchwise = Path(sys.executable).with_name("branchwise")
    with subprocess.Popen([branchwise, "train", config_file, "train.steps=100000"], stdout=-1, stderr=-1) as process:
        next(line for line in process.stdout if b"step 1/" in line)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == b"interrupted\n"


def test_the_command_ends_with_3_when_nothing_was_learnt(config_file):
    result = command(config_file, f"rewards=[{config_file.parent}/my.py:never]")
    assert result.returncode == 3 and "every pool was uniform" in result.stderr


def test_a_dry_run_loads_no_weights_and_writes_nothing(config_file, model, tmp_path):
    weights = Path(model) / "model.safetensors"
    hidden = weights.rename(weights.with_suffix(".hidden"))
    try:
        result = command(config_file, "--dry-run")
    finally:
        hidden.rename(weights)
    assert result.returncode == 0, result.stderr
    assert "6 of 6 rows usable" in result.stdout and "54 leaves" in result.stdout
    assert not (tmp_path / "run").exists()


def test_a_dry_run_finds_a_reward_that_is_not_there(config_file):
    result = command(config_file, "--dry-run", f"rewards=[{config_file.parent}/my.py:absent]")
    assert result.returncode == 2 and "absent" in result.stderr
