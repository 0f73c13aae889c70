"""The shared cases of data files (F), read from their list, so that a case that is added is a test that fails."""

import json

import pytest
from byte_tokenizer import byte_tokenizer
from conftest import SHARED
from PIL import Image

from branchwise.config import DataConfig, Source, load_config
from branchwise.data import DataError, Renderer, load_questions, load_rows, questions
from branchwise.rewards.run import RewardRunner

FILE = SHARED / "cases" / "cases.jsonl"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="no ../shared/cases beside this checkout")
LINES = FILE.read_bytes().split(b"\n") if FILE.exists() else []
CASES = {case["id"]: case for line in LINES if line and (case := json.loads(line))["kind"] == "f"}


def read(path, content):
    path.write_bytes(content)
    return load_rows(Source(path=str(path)))


def f01(tmp_path, given, expected):
    line = b'{"question":"q","answer":"1"}\n'
    for name, body in (("a.jsonl", line), ("a.json", b"[" + line + b"]"), ("a.csv", b"question,answer\nq,1\n")):
        table = read(tmp_path / name, b"\xef\xbb\xbf" + body)
        assert len(table.rows) == expected["rows"] and table.columns == expected["columns"]
        assert table == read(tmp_path / name, body)


def f02(tmp_path, given, expected):
    odd = "one\u2028two\u2029three\u0085four"
    lines = [json.dumps({"question": q}, ensure_ascii=False).encode() for q in (odd, "second")]
    for content in (b"\n".join(lines) + b"\n", b"\r\n".join(lines) + b"\r\n", lines[0] + b"\n\n" + lines[1]):
        table = read(tmp_path / "a.jsonl", content)
        assert len(table.rows) == expected["rows"] and not table.unreadable
        assert [row["question"] for row in table.rows] == [odd, "second"]


def f04(tmp_path, given, expected):
    file = tmp_path / "a.jsonl"
    rows = [{**given["rows"][0], "level": 3}, *given["rows"][1:]]
    table = read(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
    found, report = questions(table, DataConfig())
    assert report.usable == len(found) == expected["usable"]
    assert [number for number, _ in report.rejected] == [2, 3, 4]
    for number, what in ((2, "answer"), (3, "question"), (4, "answer")):
        assert f"line {number}: its {what} is missing or empty" in str(report)
    assert str(report).startswith(f"{file}: 1 of 4 rows usable")
    assert found[0].columns["level"] == 3
    renderer = Renderer(byte_tokenizer())
    with pytest.raises(DataError, match=r"data\.max_dropped: 0\.01 .* 3 of 4 \(75\.00%\)"):
        load_questions(table, DataConfig(), renderer)
    assert load_questions(table, DataConfig(max_dropped=0.75), renderer)[0] == found
    with pytest.raises(DataError, match=r"solution.* the columns found are question, answer"):
        questions(table, DataConfig(template=f"{{question}} {{{given['unknown_column']}}}"))


def f05(tmp_path, given, expected):
    image = tmp_path / given["message_content"][1]["image"]
    Image.new("RGB", (32, 32)).save(image)
    given["message_content"][1]["image"] = str(image)
    table = load_rows([{"prompt": [{"role": "user", "content": given["message_content"]}]}])
    ((question,), _) = questions(table, DataConfig())
    assert question.phrasings[0][0]["content"] == [{"type": "text", "text": "q"}, {"type": "image"}]
    assert [picture.source.name for picture in question.images] == ["a.png"]


CHECKS = {"F01": f01, "F02": f02, "F04": f04, "F05": f05}


@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name, tmp_path):
    CHECKS[name](tmp_path, CASES[name]["input"], CASES[name]["expected"])


@pytest.mark.parametrize(("answer", "right"), [(7, "7"), (7.0, "7"), (0.5, "1/2"), (-3, "-3"), (0, "0")])
def test_numbers_as_answers_are_graded_as_numbers(tmp_path, answer, right):
    table = read(tmp_path / "a.jsonl", json.dumps({"question": "q", "answer": answer}).encode())
    ((question,), report) = questions(table, DataConfig())
    assert question.columns["answer"] == answer and not report.rejected
    runner = RewardRunner.of(None, load_config({"model": {"path": "m"}}), byte_tokenizer())
    function = runner.functions[0].function
    texts = [f"\\boxed{{{right}}}", "\\boxed{8}"]
    assert function(completions=texts, answers=texts, answer=[answer] * 2) == [1.0, 0.0]


def test_duplicate_ids_are_told_and_nothing_is_merged(tmp_path):
    lines = [json.dumps({"question": q, "id": "x"}).encode() for q in "abc"]
    found, report = questions(read(tmp_path / "a.jsonl", b"\n".join(lines)), DataConfig())
    assert [q.id for q in found] == ["1", "2", "3"] and report.usable == 3
    assert "lines 1, 2, 3 have the id 'x': ids are not unique" in str(report)


def test_prompts_too_long_for_the_model_leave_before_it_is_loaded():
    config = load_config(
        {"model": {"path": "m"}, "sampling": {"max_thought_tokens": 20, "max_answer_tokens": 10},
         "tree": {"marker": None}, "data": {"max_dropped": 0.5}}
    )  # fmt: skip
    renderer = Renderer.of(byte_tokenizer(None), config, positions=40)  # which leaves 10
    rows = [{"prompt": "abcdefghij"}, {"prompt": "abcdefghijk"}]
    found, report = load_questions(rows, config.data, renderer)
    assert len(found) == 1
    limit = "10, which responses of up to 30 leave of the model's 40 positions"
    assert f"row 2: its prompt has more tokens than {limit}" in str(report)
    with pytest.raises(ValueError, match=r"max_thought_tokens: 20 .* leave no room .* 30 positions"):
        Renderer.of(byte_tokenizer(None), config, positions=30)
    assert Renderer.of(byte_tokenizer(None), config, positions=2000).max_prompt_tokens == 1024
