"""Evaluation of a tiny real model, end to end."""

import csv
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import yaml

from branchwise import ConfigError, Trainer
from branchwise.data.load import Rows
from branchwise.data.questions import questions
from branchwise.diagnostics.coupling import coupling, run_coupling
from branchwise.diagnostics.history import read_history
from branchwise.evaluate.command import powers_of_two, run_eval
from branchwise.evaluate.evaluate import vote
from branchwise.evaluate.scores import by_problem, score
from branchwise.evaluate.settings import checkpoints_of, settings_for
from branchwise.evaluate.store import Problem, Sample, Store, read_problems
from branchwise.evaluate.suites import SUITES, find_suite, suite_rows
from branchwise.rewards.run import RewardRunner

ROOT = Path(__file__).parent.parent
PROBLEMS = [{"question": f"{a}+{b}", "answer": str(a + b)} for a, b in
            ((1, 2), (3, 4), (2, 2), (5, 1), (0, 7), (4, 4), (9, 0))]  # fmt: skip
OPTIONS = {"samples": 3, "k": [1, 2, 3, 8], "max_thought_tokens": 6, "max_answer_tokens": 4, "batch": 2,
           "temperature": 1.0, "top_p": 1.0, "dtype": "float32", "device": "cpu", "template": "{question}"}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    file = tmp_path_factory.mktemp("problems") / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return str(file)


@pytest.fixture(scope="module")
def whole(model, problems, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return out, run_eval([model], [problems], out, OPTIONS, say=lambda line: None)


def samples(out):
    return (out / "model" / "sums" / "samples.jsonl").read_bytes()


def test_every_sample_is_stored_and_every_setting_stated(whole):
    out, text = whole
    stored = read_problems(out / "model" / "sums")
    assert [p.question for p in stored] == [row["question"] for row in PROBLEMS]
    assert all(len(p.samples) == 3 and p.reference for p in stored)
    assert all(0 < s.tokens <= 10 and s.finish in ("stop", "length") and s.reward is not None
               for p in stored for s in p.samples)  # fmt: skip
    (record,) = json.loads((out / "results.json").read_text())
    for key in ("samples", "temperature", "top_p", "seed", "max_thought_tokens", "marker", "batch"):
        assert key in record["settings"] and f'"{key}"' in text
    assert record["settings"]["data"]["template"] == "{question}"
    assert record["seconds"] > 0


def test_tables_say_where_k_is_too_large(whole):
    out, text = whole
    assert "undefined" in text and "pass@8 is undefined where a problem has fewer than 8 samples" in text
    (record,) = json.loads((out / "results.json").read_text())
    assert record["scores"]["passes"]["8"] is None and record["scores"]["passes"]["3"]["n"] == 7
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert {(row["score"], row["k"]) for row in rows} >= {("avg", "3"), ("pass", "1"), ("pass", "8")}
    assert next(row for row in rows if row["k"] == "8")["mean"] == ""


@pytest.mark.parametrize("keep", [0, 2, 3, 6])
def test_an_interrupted_evaluation_ends_as_one_in_one_go(whole, model, problems, tmp_path, keep):
    """Cut after whole and half batches, and in the middle of a line."""
    out, _ = whole
    run_eval([model], [problems], tmp_path, {**OPTIONS}, say=lambda line: None)
    file = tmp_path / "model" / "sums" / "samples.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:keep]) + lines[keep][: len(lines[keep]) // 2])
    said = []
    run_eval([model], [problems], tmp_path, OPTIONS, say=said.append)
    assert samples(tmp_path) == samples(out)
    assert any(f"{keep - keep % 2} of 7 problems are done" in line for line in said) == (keep >= 2)
    first, second = (json.loads((folder / "results.json").read_text())[0]["scores"] for folder in (out, tmp_path))
    assert first == second


def test_a_whole_evaluation_is_not_sampled_again(whole, model, problems):
    before = samples(whole[0])
    said = []
    run_eval([model], [problems], whole[0], OPTIONS, say=said.append)
    assert samples(whole[0]) == before and said[-1] == "sums: 7 of 7 problems are done already"


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_was(whole, model, problems, tmp_path):
    code = "from branchwise.cli import main; main()"
    arguments = ["eval", model, "--suite", problems, "-n", "3", "-k", "1,2,3,8", "--max-thought-tokens", "6",
                 "--max-answer-tokens", "4", "--batch", "2", "--temperature", "1", "--top-p", "1", "--dtype", "float32",
                 "--device", "cpu", "--template", "{question}", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL)
    file = tmp_path / "model" / "sums" / "samples.jsonl"
    for _ in range(1200):
        if file.exists() and file.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert samples(tmp_path) == samples(whole[0])


def test_other_settings_are_not_mixed_into_a_stored_evaluation(whole, model, problems):
    with pytest.raises(ConfigError, match=r"holds an evaluation with seed: 0, not 7"):
        run_eval([model], [problems], whole[0], {**OPTIONS, "seed": 7}, say=lambda line: None)


def test_other_problems_are_not_mixed_into_a_stored_evaluation(whole, model, tmp_path):
    """The file has changed since: what was measured on the old problems is no measurement of the new ones."""
    file, out = tmp_path / "sums.jsonl", tmp_path / "out"
    shutil.copytree(whole[0], out)
    for rows in (PROBLEMS[1:], PROBLEMS[::-1], [*PROBLEMS[:3], {"question": "1+1", "answer": "2"}, *PROBLEMS[4:]]):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        store = Store(out / "model" / "sums", json.loads((out / "model" / "sums" / "settings.json").read_text()))
        asked = [(str(i), row["question"]) for i, row in enumerate(rows, start=1)]
        with pytest.raises(ConfigError, match="samples of other problems than the suite has now"):
            store.load(2, asked)
        store.close()
    assert samples(out) == samples(whole[0])


def test_weights_that_have_changed_are_another_model(model, problems, tmp_path):
    changed = tiny.save(tmp_path / "model")
    run_eval([str(changed)], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)
    tiny.save(changed, seed=1)
    with pytest.raises(ConfigError, match="holds an evaluation with weights"):
        run_eval([str(changed)], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)


def test_a_try_that_stored_nothing_holds_nothing(model, problems, tmp_path):
    """An engine that is not installed, a suite that is not there: the next try may have other settings."""
    with pytest.raises(ConfigError, match="gone"):
        run_eval([model], [f"sums={tmp_path / 'gone.jsonl'}"], tmp_path / "out", OPTIONS, say=lambda line: None)
    run_eval([model], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)
    assert len(read_problems(tmp_path / "out" / "model" / "sums")) == 7


def test_a_folder_has_one_evaluation_at_a_time(whole, model, problems):
    folder = whole[0] / "model" / "sums"
    store = Store(folder, json.loads((folder / "settings.json").read_text()))
    with pytest.raises(ConfigError, match="--out: another process is writing to"):
        run_eval([model], [problems], whole[0], OPTIONS, say=lambda line: None)
    store.close()
    run_eval([model], [problems], whole[0], OPTIONS, say=lambda line: None)


def test_a_line_that_is_no_problem_is_named(whole, model, problems, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model" / "sums" / "samples.jsonl"
    file.write_bytes(b"\0\xff\n" + file.read_bytes())
    with pytest.raises(ConfigError, match=r"samples\.jsonl, line 1: not a stored problem"):
        run_eval([model], [problems], tmp_path, OPTIONS, say=lambda line: None)


def test_a_file_in_the_folders_place_is_told(model, problems, tmp_path):
    (tmp_path / "out").write_text("here")
    with pytest.raises(ConfigError, match="--out: "):
        run_eval([model], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)


def test_two_suites_of_one_name_are_refused_before_anything_is_sampled(model, problems, tmp_path):
    other = tmp_path / "sums.jsonl"
    other.write_text('{"question": "1+1", "answer": "2"}\n')
    with pytest.raises(ConfigError, match="another is named 'sums', too"):
        run_eval([model], [problems, str(other)], tmp_path / "out", OPTIONS, say=lambda line: None)
    assert not (tmp_path / "out").exists()


def test_a_suites_name_stays_within_the_folder(model, problems, tmp_path):
    run_eval([model], [f"../../über uns={problems}"], tmp_path / "a" / "b", OPTIONS | {"limit": 1}, say=lambda _: None)
    assert (tmp_path / "a" / "b" / "model" / "über-uns" / "samples.jsonl").is_file()


@pytest.mark.parametrize(
    ("suite", "row", "words"),
    [
        ("mmlu-stem", {"question": "q", "choices": "['x', 'y']", "answer": 0, "subject": "astronomy"}, "list of texts"),
        ("mmlu-stem", {"question": "q", "choices": ["x", "y"], "answer": 77, "subject": "astronomy"}, "out of range"),
        ("mbpp", {"task_id": "eleven", "text": "t", "test_list": []}, "eleven"),
        ("gpqa-diamond", {"Question": None, "Correct Answer": "1"}, "NoneType"),
        ("humaneval", {"prompt": "def f(): ..."}, "no column 'task_id'"),
    ],
)
def test_a_row_that_is_not_as_the_benchmark_has_it_is_named(tmp_path, suite, row, words):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=rf"suite {suite}: line 1 of .*{words}"):
        suite_rows(find_suite(f"{suite}={file}"), None)


def test_another_k_is_scored_from_the_stored_samples(whole, model, problems, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    text = run_eval([model], [problems], tmp_path, OPTIONS | {"k": [1, 2]}, say=lambda line: None)
    assert "pass@2" in text and "pass@3" not in text and samples(tmp_path) == samples(whole[0])


def test_a_single_greedy_sample_is_an_evaluation(model, problems, tmp_path):
    options = OPTIONS | {"samples": 1, "k": [1], "temperature": 0.0, "limit": 1}
    assert "avg@1" in run_eval([model], [problems], tmp_path, options, say=lambda line: None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samples", 0),
        ("k", [0]),
        ("k", ["a"]),
        ("temperature", -1.0),
        ("temperature", float("inf")),
        ("kv_memory_gb", float("nan")),
        ("engine", "foo"),
        ("dtype", "float99"),
    ],
)
def test_a_setting_that_cannot_be_is_named(model, problems, tmp_path, key, value):
    with pytest.raises(ConfigError, match=key):
        run_eval([model], [problems], tmp_path, OPTIONS | {key: value}, say=lambda line: None)


def test_training_data_that_are_not_there_are_told_before_anything_is_sampled(model, problems, tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        run_eval([model], [problems], tmp_path / "out", OPTIONS, train_data=str(tmp_path / "a.jsonl"))
    assert not (tmp_path / "out").exists()


def test_a_file_without_rows_of_the_suite_is_named(problems):
    with pytest.raises(ConfigError, match=r"mmlu-stem: none of the 7 rows of .*sums\.jsonl"):
        suite_rows(find_suite(f"mmlu-stem={problems}"), None)


def test_two_models_are_compared_problem_by_problem(whole, model, problems, tmp_path):
    other = str(tiny.save(tmp_path / "other", seed=1))
    text = run_eval([model, other], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)
    assert "other, pass@2, difference from the first model" in text
    _, record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["difference"]["avg@3"]["n"] == 7 and record["model"] == "other"


def test_what_was_trained_on_is_reported(whole, model, problems, tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text('{"question": "What is 1+2, and why?", "answer": "3"}\n')
    text = run_eval([model], [problems], whole[0], OPTIONS, train_data=str(train), say=lambda line: None)
    assert "contamination: 1 of 7 problems (14.3%)" in text


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A tiny run with checkpoints and held-out data."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    rows = folder.parent / "rows.jsonl"
    rows.write_text("".join(json.dumps({**row, "rephrasings": [row["question"][::-1]]}) + "\n" for row in PROBLEMS))
    config = {
        "data": {"train": str(rows), "eval": str(rows)},
        "tree": {"thoughts": 3, "answers": 3, "rephrasings": 1},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5},
        "train": {"output_dir": str(folder), "steps": 3, "questions": 4, "learning_rate": 1e-3, "save_every": 1,
                  "precision": "float32", "device": "cpu"},
    }  # fmt: skip
    trainer = Trainer(model, [digits], config=config)
    trainer.train()
    return folder, trainer


def digits(completion_ids, answers, **_):
    """Share of digits, and something for an answer at all, so that few pools are uniform."""
    return [sum(6 <= i <= 15 for i in ids) / len(ids) + 0.1 * len(a) for ids, a in zip(completion_ids, answers)]


def test_a_step_logs_its_diagnostics(run):
    steps = read_history(run[0]).steps
    for key in ("uniform_common/question", "uniform_common/phrasing", "rescued_pools", "memory/peak_mb",
                "response_tokens/right", "variance/within", "variance/between"):  # fmt: skip
        assert all(key in step for step in steps), key
    assert "gss" not in steps[-1]  # undefined before ten updates


def test_every_logged_metric_is_documented(run):
    text = (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    named = [re.escape(name) for name in re.findall(r"`([a-z_]+(?:/[\w…]+)*)`", text)]
    named = [name.replace("NAME", r"\w+").replace("STAGE", r"\w+").replace("…", r"\w+") for name in named]
    known = re.compile("|".join([*named, r"context_shift/\d+", r"uniform/\w+/(?:all_right|all_wrong|tied)"]))
    keys = {key for step in (*read_history(run[0]).steps, *read_history(run[0]).held_out) for key in step} - {"step"}
    assert sorted(key for key in keys if not known.fullmatch(key)) == []


def test_checkpoints_are_evaluated_on_the_runs_own_held_out_questions(run):
    folder, _ = run
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["rewards"] = [{"function": "math", "weight": 1.0, "args": {}}]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    options = {key: OPTIONS[key] for key in ("samples", "batch", "dtype", "device")} | {"k": [1, 2]}
    text = run_eval([str(folder)], [], None, options, checkpoints=True, say=lambda line: None)
    records = json.loads((folder / "evals" / "results.json").read_text())
    assert [record["step"] for record in records] == [1, 2, 3] and "| step 2 |" in text
    settings = records[0]["settings"]
    assert settings["marker"] == "</think>" and settings["max_thought_tokens"] == 12  # the run's own
    assert settings["data"]["template"] == "{question}"
    assert all({"uniform", "answers_disagree"} <= record["scores"]["shares"].keys() for record in records)


def test_the_coupling_is_that_of_the_gradients_that_training_adds_up(run):
    """‖g‖² = ‖g_t‖² + ‖g_a‖² + 2·cos·‖g_t‖·‖g_a‖, with g of the whole objective."""
    from branchwise.diagnostics.coupling import _gradient

    folder, trainer = run
    from branchwise.train.tree_log import read_trees

    trees = list(read_trees(folder / "trees" / "000003.jsonl"))
    cosine = coupling(trainer.policy, trees, trainer.config)
    parts = [("thought",), ("answer",), ("thought", "answer")]
    t, a, both = (
        sum(float((g.double() ** 2).sum()) for g in _gradient(trainer.policy, trees, trainer.config, kinds))
        for kinds in parts
    )
    assert -1 <= cosine <= 1
    assert cosine == pytest.approx((both - t - a) / (2 * (t * a) ** 0.5), abs=1e-4)
    for tree in trees:  # nothing to learn from
        for leaf in tree.leaves():
            tree.nodes[leaf].reward = 1.0
    assert coupling(trainer.policy, trees, trainer.config) is None
    assert run_coupling(folder).startswith(f"coupling at step 3: cosine {cosine:.3f}")


def test_what_lies_beside_checkpoints_is_none(run, tmp_path):
    shutil.copy(run[0] / "config.yaml", tmp_path)
    for name in ("000002", "000004.aside-1", "000009.unfinished", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert {step: path.name for step, path in checkpoints_of(tmp_path).items()} == {2: "000002"}


def test_training_data_that_are_not_at_hand_are_not_passed_over_in_silence(run, model, problems, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    for train, words in (({"path": "some/where"}, "trained on some/where"), (None, "what a program gave"),
                         ({"path": str(tmp_path / "gone.jsonl")}, r"gone\.jsonl: no such file")):  # fmt: skip
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["data"]["train"] = train
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        text = run_eval([str(folder)], [problems], tmp_path / "out", OPTIONS, say=lambda line: None)
        assert re.search(f"contamination: not checked.*{words}", text)


def problem(name, *rewards, answers=None):
    answers = answers or ["1" if r else "0" for r in rewards]
    return Problem(name, name, "1", [Sample("t", a, r, tokens=4, finish="stop") for a, r in zip(answers, rewards)])


def test_scores_by_hand():
    scores = score([problem("a", 1.0, 0.0, 1.0), problem("b", 0.0, 0.0, 0.0)], [1, 2, 3])
    assert scores.average.mean == pytest.approx(1 / 3)
    assert scores.passes[1].mean == pytest.approx(1 / 3) and scores.passes[2].mean == pytest.approx(1 / 2)
    assert scores.majority[3].mean == pytest.approx(1 / 2)
    assert scores.shares["uniform"] == 0.5 and scores.shares["answers_disagree"] == pytest.approx(1 / 3)
    assert by_problem([problem("a", 1.0, 0.0, 1.0)], None) == {"a": pytest.approx(2 / 3)}


def test_missing_rewards_count_nowhere_and_are_said():
    p = problem("a", 1.0, None, 0.0)
    p.samples[1].reason = "math: TimeoutError"
    scores = score([p], [1, 2, 3])
    assert scores.missing == 1 and scores.passes[1].mean == 0.5 and scores.passes[3] is None
    assert any("1 × math: TimeoutError" in note for note in scores.notes)


def test_programs_have_no_votes():
    scores = score([problem("a", 1.0, 0.0, answers=[None, None])], [1, 2])
    assert scores.majority == {} and vote("def f(): pass", "code", {}) is None


def test_equal_scores_are_said_to_have_no_interval():
    assert any("cannot tell how sure" in n for n in score([problem("a", 0.0), problem("b", 0.0)], [1]).notes)


def test_ks_are_powers_of_two():
    assert powers_of_two(1) == [1] and powers_of_two(8) == [1, 2, 4, 8] and powers_of_two(10) == [1, 2, 4, 8]


def test_a_suite_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="gsm8k, math"):
        find_suite("gsm8")


FILES = {"gsm8k": ("gsm8k_test", 1319), "math500": ("math500", 500), "olympiadbench": ("olympiadbench", 675),
         "mmlu-stem": ("mmlu_stem", None), "humaneval": ("humaneval", 164), "mbpp": ("mbpp", 500)}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_suites_are_read_from_files_with_the_same_columns(shared_data, name):
    file, count = FILES[name]
    suite = find_suite(f"{name}={shared_data / file}.jsonl")
    rows = suite_rows(suite, None).rows
    assert len(rows) == count if count else len(rows) > 2800
    if suite.reward != "code":
        assert all(row["answer"] for row in rows)
    settings = settings_for("some/model", suite, name, {})
    assert settings.rewards[0].function == SUITES[name].reward
    if suite.reward == "choice":
        assert rows[0]["options"].startswith("A. ") and rows[0]["answer"] in "ABCD"


def test_programs_are_asked_for_in_the_chat_template_and_graded_by_the_bare_prompt(shared_data):
    suite = find_suite(f"humaneval={shared_data}/humaneval.jsonl")
    rows = suite_rows(suite, 2).rows
    data = settings_for("some/model", suite, "humaneval", {}).data
    found, _ = questions(Rows("rows", rows), data)
    (message,) = found[0].phrasings[0]
    assert message["role"] == "user" and message["content"].startswith("Complete this Python function.")
    assert "def has_close_elements" in message["content"]
    assert found[0].columns["prompt"][0]["content"].startswith("from typing")


def test_hub_columns_are_brought_to_the_graders():
    choice = SUITES["mmlu-stem"].prepare({"question": "q", "choices": ["x", "y"], "answer": 1, "subject": "astronomy"})
    assert choice["answer"] == "B" and choice["options"] == "A. x\nB. y"
    assert SUITES["mmlu-stem"].prepare({"question": "q", "choices": ["x"], "answer": 0, "subject": "law"}) is None
    row = {"Question": "q", "Correct Answer": "r", **{f"Incorrect Answer {i}": f"w{i}" for i in (1, 2, 3)}}
    gpqa = SUITES["gpqa-diamond"].prepare(row)
    assert gpqa["choices"]["ABCD".index(gpqa["answer"])] == "r" and sorted(gpqa["choices"]) == ["r", "w1", "w2", "w3"]
    assert SUITES["mmlu-stem"].prepare({"question": "q", "choices": ["x"], "answer": 0, "subject": "anatomy"}) is None
    assert SUITES["olympiadbench"].prepare({"question": "q", "final_answer": ["2"]})["answer"] == "2"
    row = {"question": "q", "context": "Let $T=3$.", "final_answer": ["2"]}
    assert SUITES["olympiadbench"].prepare(row)["question"] == "Let $T=3$.\nq"
    assert SUITES["mbpp"].prepare({"task_id": 5, "text": "t", "test_list": []}) is None


CODE = {"test_setup_code": "", "challenge_test_list": []}
# a row as each data set has it on the hub, and the question and the reference in it
HUB = {
    "gsm8k": ({"question": "q", "answer": "6*7=<<6*7=42>>42\n#### 42"}, "q", "42"),
    "math": ({"problem": "q", "level": "Level 1", "type": "Algebra", "solution": "So \\boxed{42}."}, "q", "42"),
    "math500": ({"problem": "q", "solution": "So \\boxed{42}.", "answer": "42", "subject": "Algebra", "level": 1,
                 "unique_id": "test/algebra/1.json"}, "q", "42"),
    "amc23": ({"id": 0, "question": "q", "answer": "42.0", "url": "https://x.org"}, "q", "42.0"),
    "aime24": ({"id": 60, "problem": "q", "solution": "So \\boxed{7}.", "answer": "042", "url": "https://x.org",
                "year": "2024"}, "q", "042"),
    "aime25": ({"problem": "q", "answer": "42", "id": "0"}, "q", "42"),
    "olympiadbench": ({"id": 1, "question": "q", "solution": ["s"], "final_answer": ["42"], "context": None,
                       "image_1": None, "modality": "Text-only", "difficulty": "Competition",
                       "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": None,
                       "question_type": "Open-ended", "subfield": "Algebra", "subject": "Math",
                       "language": "English"}, "q", "42"),
    "minerva": ({"question": "q", "answer": "42"}, "q", "42"),
    "gpqa-diamond": ({"Question": "q\n", "Correct Answer": "42", **{f"Incorrect Answer {i}": str(i) for i in (1, 2, 3)},
                      "Subdomain": "Physics"}, "q", None),
    "mmlu-stem": ({"question": "q", "subject": "astronomy", "choices": ["1", "42"], "answer": 1}, "q", "B"),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "q", "canonical_solution": "", "test": "def check(f): ...",
                   "entry_point": "f"}, "q", None),
    "mbpp": ({"task_id": 11, "text": "q", "code": "", "test_list": ["assert f(1)"], **CODE}, "q", None),
}  # fmt: skip


@pytest.mark.parametrize("name", SUITES)
def test_a_suites_row_as_the_hub_has_it_is_asked_and_graded(name):
    """Each is a real data set's own columns; a file with them is read the same way."""
    row, asked, reference = HUB[name]
    suite = SUITES[name]
    prepared = suite.prepare(row)
    (question,), _ = questions(Rows(name, [prepared]), settings_for("some/model", suite, name, {}).data)
    (message,) = question.phrasings[0]
    assert message["role"] == "user" and asked in message["content"]
    assert reference is None or question.columns["answer"] == reference
    RewardRunner.of(None, settings_for("some/model", suite, name, {}).config(), None).check(set(question.columns))
