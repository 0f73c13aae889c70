"""Evaluation of tiny real vision-language models on questions with images: in a run, and by `branchwise eval`."""

import json
import shutil

import pytest
from test_vision_training import read_lines, saved
from typer.testing import CliRunner
from vision_families import picture

from branchwise.cli import app
from branchwise.evaluate.command import run_eval
from branchwise.evaluate.contamination import Asked, contamination
from branchwise.evaluate.store import read_problems

OPTIONS = {"samples": 3, "k": [1, 2], "batch": 2, "temperature": 1.0, "top_p": 1.0, "dtype": "float32", "device": "cpu"}
SIZES = ((40, 24), (16, 24), (24, 24), (64, 32), (16, 16))


def write(folder, name, first):
    """A file of questions with one, two and no images, and their pictures beside it."""
    rows = []
    for i, size in enumerate(SIZES):
        file = f"{name}{i}.png"
        picture(first + i, *size).save(folder / file)
        rows.append({"question": "1+2=", "shown": [file], "answer": "3"})
    rows[1] |= {"question": "<image>+<image>=", "shown": [f"{name}1.png", f"{name}0.png"]}
    rows[2] |= {"question": "3+4=", "shown": []}
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / f"{name}.jsonl"


REWARD = (
    "def mean(completion_ids, width=None, **_):\n    return [sum(ids) / len(ids) / 100 for ids in completion_ids]\n"
)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "llava"])
def ran(request, tmp_path_factory):
    """A run of two steps, evaluated at each, on files with a column of images of another name and limits of size."""
    folder = tmp_path_factory.mktemp(request.param)
    saved(request.param, folder / "weights")
    (folder / "mean.py").write_text(REWARD)
    config = {
        "model": {"path": str(folder / "weights")},
        "data": {
            "train": str(write(folder, "train", 0)), "eval": str(write(folder, "held", 50)), "image_column": "shown",
            "max_pixels": 600,
        },
        "rewards": [f"{folder}/mean.py:mean"],
        "tree": {"thoughts": 3, "answers": 2},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5, "kv_memory_gb": 1, "dtype": "float32"},
        "eval": {"every": 1, "samples": 3},
        "train": {"steps": 2, "questions": 4, "learning_rate": 1e-2, "precision": "float32", "device": "cpu",
                  "save_every": 1, "output_dir": str(folder / "run")},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    train(folder)
    return folder


def train(folder, *overrides):
    result = CliRunner().invoke(app, ["train", str(folder / "config.yaml"), *overrides])
    assert result.exit_code == 0, result.output


def held_out(run):
    lines = read_lines(run / "metrics.jsonl")
    return {line["step"]: line["held_out/mean"] for line in lines if "held_out/mean" in line}


def evaluated(folder, out, suites=(), **options):
    said = []
    text = run_eval([str(folder / "run")], [str(s) for s in suites], out, OPTIONS | options, say=said.append)
    return text, said


def test_a_run_is_evaluated_at_each_step_and_again_to_the_same_numbers(ran, tmp_path):
    first = held_out(ran / "run")
    assert sorted(first) == [0, 1, 2] and len(set(first.values())) == 3
    train(ran, f"train.output_dir={tmp_path}/again")
    assert held_out(tmp_path / "again") == first
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "000002", ignore_errors=True)
    train(ran, f"train.output_dir={tmp_path}/again", "--resume")
    assert held_out(tmp_path / "again")[2] == first[2]


def test_the_command_sees_what_the_run_saw_and_draws_the_same_for_the_same_seed(ran, tmp_path):
    evaluated(ran, tmp_path / "a")
    evaluated(ran, tmp_path / "b")
    evaluated(ran, tmp_path / "c", seed=1)
    a, b, c = ((tmp_path / x / "run" / "held-out" / "samples.jsonl").read_bytes() for x in "abc")
    assert a == b and a != c
    stored = read_problems(tmp_path / "a" / "run" / "held-out")
    mean = sum(s.reward for p in stored for s in p.samples) / (3 * len(stored))
    # the run's own last evaluation, of the same weights, questions, seed and temperature
    assert len(stored) == len(SIZES) and mean == pytest.approx(held_out(ran / "run")[2], abs=1e-9)
    settings = json.loads((tmp_path / "a" / "run" / "held-out" / "settings.json").read_text())
    assert settings["data"]["image_column"] == "shown" and settings["data"]["max_pixels"] == 600


@pytest.mark.parametrize("keep", [1, 3])
def test_a_file_of_ones_own_goes_on_where_it_was_interrupted(ran, tmp_path, keep):
    (tmp_path / "data").mkdir()
    own = write(tmp_path / "data", "own", 90)
    evaluated(ran, tmp_path / "whole", [own])
    file = tmp_path / "whole" / "run" / "own" / "samples.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:keep]) + lines[keep][:20])
    _, said = evaluated(ran, tmp_path / "whole", [own])
    assert file.read_bytes() == whole
    assert any(f"{keep - keep % 2} of 5 problems" in line for line in said) == (keep >= 2)


def test_the_same_words_of_another_picture_are_another_problem(ran, tmp_path):
    """Held out are other pictures; the one question without any stands in the training data."""
    text, _ = evaluated(ran, tmp_path)
    assert "contamination: 1 of 5 problems (20.0%)" in text
    text, _ = evaluated(ran, tmp_path, [ran / "train.jsonl"])
    assert "contamination: 5 of 5 problems (100.0%)" in text


def test_a_problem_with_pictures_is_found_where_its_words_stand_with_one_of_them():
    train = [Asked("How many?", frozenset("ab")), Asked("What colour?", frozenset("c")), Asked("Why?")]
    problems = {
        "same": Asked("how many", frozenset("b")), "other picture": Asked("how many", frozenset("c")),
        "other words": Asked("which colour", frozenset("a")), "text": Asked("why"),
        "seen": Asked("why", frozenset("a")),
        "text of one with a picture": Asked("what colour"),
    }  # fmt: skip
    assert contamination(problems, train).found == ["same", "text"]
