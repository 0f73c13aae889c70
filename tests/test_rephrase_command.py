"""`branchwise rephrase` as a user meets it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_server import Answer, ChatServer, limit

BRANCHWISE = Path(sys.executable).with_name("branchwise")
ROWS = [
    {"id": "a", "problem": "Ann has 3 apples. Ben buys 4 pears. How many fruits are there?", "answer": "7", "level": 1},
    {"id": "b", "problem": "Find $x$ if $2x = 10$.", "answer": "5", "level": None},
    {"id": "c", "problem": "", "answer": "5", "level": 3},
    {"id": "d", "problem": "Kate buys 12 red pens and 5 blue ones. How many pens has she?", "answer": "17", "level": 4},
]


def branchwise(*arguments):
    command = [BRANCHWISE, "rephrase", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def lines(file):
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").split("\n") if line]


def test_rules_keep_every_row_and_column_in_order(data, tmp_path):
    out = tmp_path / "out.jsonl"
    result = branchwise(data, "--out", out, "-n", "3", "--show", "2")
    assert result.returncode == 0, result.stderr
    rows = lines(out)
    assert [{k: v for k, v in row.items() if k != "rephrasings"} for row in rows] == ROWS
    assert [len(row["rephrasings"]) for row in rows] == [3, 3, 0, 3]
    assert all(len({row["problem"], *row["rephrasings"]}) == 4 for row in rows if row["problem"])
    assert "row 3: its question is missing or empty" in result.stdout
    assert "[a] Ann has" in result.stdout and "rejected: 0" in result.stdout
    records = lines(tmp_path / "out.records.jsonl")
    assert [r["text"] for r in records] == [text for row in rows for text in row["rephrasings"]]
    assert branchwise("--check", out).returncode == 0


def test_a_question_that_fits_no_prompt_stays_as_it_is(data, tmp_path):
    with data.open("a") as file:
        file.write(
            json.dumps({"id": "e", "problem": "Ann has 3 apples. " * 20_000 + "How many?", "answer": "3"}) + "\n"
        )
    result = branchwise(data, "--out", tmp_path / "out.jsonl")
    assert result.returncode == 0 and "row 5: its question has 360,009 characters" in result.stdout
    assert [len(row["rephrasings"]) for row in lines(tmp_path / "out.jsonl")] == [3, 3, 0, 3, 0]


def test_parquet_is_read_and_written(data, tmp_path):
    from branchwise.config import Source
    from branchwise.data.load import load_rows

    assert branchwise(data, "--out", tmp_path / "out.parquet").returncode == 0
    assert branchwise(tmp_path / "out.parquet", "--out", tmp_path / "again.jsonl", "-n", "2").returncode == 0
    rows = load_rows(Source(path=str(tmp_path / "out.parquet"))).rows
    assert [len(row["rephrasings"]) for row in rows] == [3, 3, 0, 3] and [row["level"] for row in rows] == [
        1,
        None,
        3,
        4,
    ]
    assert [row["rephrasings"] for row in lines(tmp_path / "again.jsonl")] == [row["rephrasings"] for row in rows]


def test_a_column_of_several_types_is_told_before_anything_is_paid_for(data, tmp_path):
    data.write_text(
        "".join(json.dumps({**row, "level": level}) + "\n" for row, level in zip(ROWS, (1, "two", None, [])))
    )
    with ChatServer(lambda seen, number: Answer(text="x")) as server:
        writer = ("--writer", "openai:tiny", "--base-url", server.url)
        result = branchwise(data, "--out", tmp_path / "out.parquet", *writer)
    assert result.returncode == 2 and "column 'level' cannot stand in a .parquet file" in result.stderr
    assert not server.seen and not (tmp_path / "out.parquet").exists()


def test_check_prints_each_rephrasing_with_its_verdict_and_reason(tmp_path):
    original = "A crate holds 24 jars; 3 jars break. How many of 5 crates' jars are whole?"
    replies = [
        "Each crate contains 25 jars, of which 3 break. How many jars in 5 crates stay whole?",
        "Each crate contains twenty-four jars; three of them break. How many jars in five crates are whole?",
        "A crate holds 24 jars. How many of 5 crates' jars are whole?",
        original,
    ]
    file = tmp_path / "given.jsonl"
    file.write_text(json.dumps({"question": original, "answer": "105", "rephrasings": replies}) + "\n")
    result = branchwise("--check", file)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["rephrasing"] for one in found] == replies
    assert [one["accepted"] for one in found] == [False, True, False, False]
    assert found[0]["reason"].startswith("numbers: ") and found[1]["reason"] is None
    assert found[3]["reason"].startswith("same: ") and "numbers" in result.stderr and "67%" in result.stderr
    skipped = branchwise("--check", file, "--skip", "numbers", "--skip", "same").stdout.splitlines()
    assert [json.loads(line)["accepted"] for line in skipped] == [True] * 4


def test_given_rephrasings_are_checked_kept_and_topped_up(data, tmp_path):
    rows = [
        {**ROWS[3], "rephrasings": ["How many pens has Kate with 12 red and 5 blue ones?", "How many are 12 and 6?"]}
    ]
    data.write_text(json.dumps(rows[0]) + "\n")
    assert branchwise(data, "--out", tmp_path / "out.jsonl", "-n", "2").returncode == 0
    texts = lines(tmp_path / "out.jsonl")[0]["rephrasings"]
    assert texts[0] == rows[0]["rephrasings"][0] and len(texts) == 2 and "6" not in texts[1]
    assert lines(tmp_path / "out.rejected.jsonl")[0]["reason"].startswith("numbers")


def test_a_stop_ends_with_1_writes_no_data_and_the_next_run_goes_on(data, tmp_path):
    spent = [limit(code="insufficient_quota")]

    def behave(seen, number):
        if spent and "Kate" in seen.question:
            return spent[0]
        return Answer(text=f"{seen.question} Say it in one number.")

    out = tmp_path / "out.jsonl"
    with ChatServer(behave) as server:
        arguments = (data, "--out", out, "-n", "1", "--writer", "openai:tiny", "--base-url", server.url)
        result = branchwise(*arguments)
        assert result.returncode == 1 and "quota" in result.stderr and "goes on" in result.stderr
        assert not out.exists()
        spent.clear()
        assert branchwise(*arguments).returncode == 0
        number = len(server.seen)
        assert branchwise(*arguments).returncode == 0
    assert number == len(server.seen) == 4 and [len(row["rephrasings"]) for row in lines(out)] == [1, 1, 0, 1]


def test_a_dry_run_tells_tokens_and_money_and_sends_nothing(data, tmp_path):
    result = branchwise(data, "-n", "3", "--writer", "openai:gpt-4-turbo-2024-04-09", "--dry-run")
    assert result.returncode == 0 and "9 requests" in result.stdout and "$10 and $30" in result.stdout
    unknown = branchwise(data, "--writer", "openai:mine", "--dry-run").stdout
    assert "--price-in" in unknown
    assert (
        "$1 and $2"
        in branchwise(data, "--writer", "openai:mine", "--dry-run", "--price-in", 1, "--price-out", 2).stdout
    )
    assert [file.name for file in tmp_path.iterdir()] == ["data.jsonl"]


def test_maths_training_questions_cost_about_a_hundred_dollars(shared_data):
    arguments = (shared_data / "math_train.jsonl", "-n", "3", "--writer", "openai:gpt-4-turbo", "--dry-run")
    result = branchwise(*arguments).stdout
    assert "7498 questions, 22494 rephrasings" in result and "22,494 requests" in result
    assert 90 < float(result.partition("tokens: $")[2].partition(" ")[0]) < 115


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "x.jsonl"), "DATA"),
        (("DATA",), "--out"),
        (("DATA", "--out", "x.xlsx"), ".parquet"),
        (("DATA", "--out", "absent/x.jsonl"), "absent"),
        (("DATA", "--out", "DATA"), "is the file that is read"),
        (("DATA", "--out", "FOLDER"), "cannot be written"),
        (("DATA", "--out", "OUT", "--writer", "gpt-4"), "openai:MODEL"),
        (("DATA", "--out", "OUT", "--writer", ""), "openai:MODEL"),
        (("DATA", "--out", "OUT", "--writer", "policy"), "local:MODEL"),
        (("DATA", "--out", "OUT", "--kinds", "wordings"), "kinds"),
        (("DATA", "--out", "OUT", "--skip", "nombers"), "numbers"),
        (("DATA", "--out", "OUT", "--prompts", "absent"), "absent"),
        (("absent.jsonl", "--out", "OUT"), "no such file"),
        (("DATA", "--out", "OUT", "--writer", "openai:gpt-4-turbo"), "OPENAI_API_KEY"),
        (("DATA", "--out", "OUT", "--writer", "local:absent-model"), "absent-model"),
    ],
)
def test_what_cannot_be_ends_with_2_and_says_so(data, tmp_path, monkeypatch, arguments, words):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "folder.jsonl").mkdir()
    places = {"DATA": str(data), "OUT": str(tmp_path / "o.jsonl"), "FOLDER": str(tmp_path / "folder.jsonl")}
    given = [places.get(a, a) for a in arguments]
    result = branchwise(*given)
    assert result.returncode == 2 and words in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def test_a_key_in_the_environment_is_sent_and_never_stored(data, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-12345")
    with ChatServer(lambda seen, number: Answer(text="no")) as server:
        branchwise(data, "--out", tmp_path / "o.jsonl", "--writer", "openai:tiny", "--base-url", server.url)
    assert server.seen
    for file in tmp_path.iterdir():
        assert b"sk-secret" not in file.read_bytes()


def test_an_interrupt_lets_replies_under_way_arrive(data, tmp_path):
    slow = ChatServer(lambda seen, number: Answer(text=f"{seen.question} Say it in one number.", delay=1.0))
    with slow as server:
        arguments = ("--out", tmp_path / "o.jsonl", "-n", "1", "--writer", "openai:tiny", "--base-url", server.url)
        command = [BRANCHWISE, "rephrase", data, *arguments, "--concurrency", "2"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(server.seen) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        assert process.returncode == 1 and "interrupted" in told and len(server.seen) == 2
        assert "2 replies found" in branchwise(data, *arguments).stdout
    assert len(server.seen) == 3
