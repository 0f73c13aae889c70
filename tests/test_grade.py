"""`branchwise grade` as a user meets it, and the built-in rewards by name, in the runner and in TRL."""

import json
import subprocess
import sys

import pytest
from byte_tokenizer import byte_tokenizer

from branchwise.config import RewardConfig
from branchwise.rewards.adapt import RewardFunction
from branchwise.rewards.math import math
from branchwise.rewards.references import reference_notes
from branchwise.rewards.run import BUILT_IN, RewardRunner
from branchwise.tree import Question

COMMAND = [sys.executable, "-c", "from branchwise.cli import main; main()", "grade"]


def grade(task, *rows, arguments=("-",), text=None):
    lines = "".join(json.dumps(row) + "\n" for row in rows) if text is None else text
    return subprocess.run(
        [*COMMAND, *arguments, "--task", task], input=lines, capture_output=True, text=True, timeout=120
    )


def graded(task, *rows):
    result = grade(task, *rows)
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_rows_come_back_in_order_with_reward_and_reason():
    rows = [
        {"output": "<think>5</think> \\boxed{\\frac12}", "answer": "0.5", "id": 7},
        {"output": "\\boxed{3}", "answer": 4},
        {"output": [{"role": "assistant", "content": "#### 4"}], "answer": "4"},
        {"output": "no idea", "answer": "4"},
    ]
    found = graded("math", *rows)
    assert [{k: v for k, v in row.items() if k not in ("reward", "reason")} for row in found] == rows
    assert [row["reward"] for row in found] == [1, 0, 1, 0]
    assert found[0]["reason"] == "\\frac12 equals 0.5" and found[3]["reason"] == "no final answer"


def test_other_tasks():
    choices = ["Lima", "Quito"]
    assert [r["reward"] for r in graded("choice", {"output": "Quito", "answer": "B", "choices": choices})] == [1]
    assert [r["reward"] for r in graded("format", {"output": "<think>a</think><answer>b</answer>"})] == [1]
    rows = [{"output": "[0, 4, 8, 8]"}, {"output": [0, 4, 8, 8]}, {"output": {"bbox": [0, 4, 8, 8]}}]
    assert [r["reward"] for r in graded("box", *({**row, "answer": [0, 0, 8, 8]} for row in rows))] == [0.5] * 3


def test_rows_that_cannot_be_graded_are_null_with_a_reason():
    rows = [
        {"answer": "4"},
        {"output": "4"},
        {"output": 4, "answer": "4"},
        {"output": "4", "answer": ""},
        {"output": "4", "answer": "4"},
    ]
    found = graded("math", *rows)
    assert [row["reward"] for row in found] == [None] * 4 + [1]
    assert [row["reason"] for row in found][:4] == [
        "no output",
        "no answer",
        "the output is neither a text nor messages",
        "the reference is empty",
    ]
    lines = grade("math", text='{"output": \n\n[1]\n{"output": "4", "answer": "4"}\n').stdout.splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [None, None, 1]


def test_only_the_models_own_messages_are_read():
    output = [{"role": "user", "content": "Is it \\boxed{9}?"}, {"role": "assistant", "content": "It is 5."}]
    found = graded("math", {"output": output, "answer": "9"}, {"output": output, "answer": "5"})
    assert [row["reward"] for row in found] == [0, 1]


def test_exit_codes_and_files(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('\ufeff{"output": "4", "answer": "4"}\n', encoding="utf-8")
    result = grade("math", arguments=[str(source), "--out", str(target)])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(target.read_text())["reward"] == 1
    assert grade("math", {"output": "4"}).returncode == 1
    assert grade("math", text="").returncode == 2
    assert grade("math", arguments=[str(tmp_path / "absent.jsonl")]).returncode == 2
    unwritable = grade("math", arguments=[str(source), "--out", str(tmp_path / "absent" / "out.jsonl")])
    assert unwritable.returncode == 2 and "absent" in unwritable.stderr and "in.jsonl" not in unwritable.stderr
    assert grade("maths", {"output": "4"}).returncode == 2
    same = grade("math", arguments=[str(source), "--out", str(source)])
    assert same.returncode == 2 and source.read_text(encoding="utf-8-sig").startswith('{"output"')


def test_references_that_cannot_be_graded_are_told_with_their_rows():
    questions = [Question(str(i), ("q",), {"answer": answer}) for i, answer in enumerate(["4", "", "x"], start=1)]
    (note,) = reference_notes([RewardFunction("math", math)], questions, "data.train")
    assert "1 of 3 references" in note and "row 2: the reference is empty" in note
    assert reference_notes([RewardFunction("mine", len)], questions, "data.train") == []


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "reasoning_gym"])
def test_built_ins_load_by_name_and_need_no_column_but_the_answer(name):
    runner = RewardRunner([RewardConfig(function=name)], byte_tokenizer())
    runner.check(["answer"])


@pytest.mark.slow
def test_built_ins_work_in_trl(tmp_path):
    import tiny
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from branchwise.rewards.choice import choice
    from branchwise.rewards.format import format
    from branchwise.rewards.length import length

    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        max_steps=1,
        gradient_checkpointing=False,
        save_strategy="no",
    )
    data = Dataset.from_list([{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}] * 2)
    trainer = GRPOTrainer(
        tiny.llama(), [math, choice, format, length], args, train_dataset=data, processing_class=tiny.tokenizer()
    )
    trainer.train()
    logged = [row for row in trainer.state.log_history if "rewards/math/mean" in row]
    assert logged and logged[0]["rewards/format/mean"] == 0
