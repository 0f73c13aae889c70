"""Reading tables, and what becomes of their rows."""

import csv
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from branchwise.config import DataConfig, Source
from branchwise.data import DataError, Stream, load_rows, questions

SHARED = Path(__file__).parents[2] / "shared" / "data"
shared_data = pytest.mark.skipif(not SHARED.exists(), reason=f"needs the data sets of {SHARED}")


def rows_of(path, content):
    path.write_bytes(content)
    return load_rows(Source(path=str(path)))


def made(rows, rephrasings=0, **data):
    return questions(load_rows(rows), DataConfig(**data), rephrasings)


def only(rows, rephrasings=0, **data):
    """The one question of a table with one usable row."""
    (question,), _ = made(rows, rephrasings, **data)
    return question


# --- files


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):  # case F01
    line = b'{"question":"q","answer":"1"}'
    table = rows_of(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + line)
    assert table.rows == [{"question": "q", "answer": "1"}] == rows_of(tmp_path / "b.jsonl", line).rows
    assert table.columns == ["question", "answer"]
    assert rows_of(tmp_path / "c.json", b"\xef\xbb\xbf[" + line + b"]").rows == table.rows
    assert rows_of(tmp_path / "d.csv", b"\xef\xbb\xbfquestion,answer\nq,1\n").rows == table.rows


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_only_line_feeds_end_lines(tmp_path, end, last, suffix):  # case F02
    odd = "one\u2028two\u2029three\u0085four"
    lines = [json.dumps({"question": q}, ensure_ascii=False).encode() for q in (odd, "second")]
    table = rows_of(tmp_path / f"a.{suffix}", lines[0] + end + b"\n" + lines[1] + last)
    assert [row["question"] for row in table.rows] == [odd, "second"]


def test_a_cut_line_is_reported_with_its_place(tmp_path):
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: not JSON .* cut short"):
        rows_of(tmp_path / "a.jsonl", b'{"question": "q"}\n\n{"question": "q2", "ans')


def test_what_is_no_row_is_reported_with_its_place(tmp_path):
    with pytest.raises(DataError, match=r"line 2: a row is an object of named columns, this is \[1\]"):
        rows_of(tmp_path / "a.jsonl", b'{"question": "q"}\n[1]\n')
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        rows_of(tmp_path / "a.jsonl", '{"question": "é"}'.encode("latin-1"))
    with pytest.raises(DataError, match="entry 2: a row is an object"):
        rows_of(tmp_path / "a.json", b'[{"question": "q"}, "r"]')
    with pytest.raises(DataError, match="line 2: more cells than the header's 2 columns"):
        rows_of(tmp_path / "a.csv", b"question,answer\nq,1,2\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'question,answer\n"What is 1 + 1?,2\n', "line 2: not CSV .*unexpected end"),
        (b"question,answer\nWhat is 1 + 1?,2\nWhat is 2", "line 3: fewer cells than the header's 2"),
        (b"question,question\na,b\n", "names the column 'question' twice"),
    ],
)
def test_a_csv_that_is_cut_short_or_ambiguous_is_reported_with_its_place(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.csv", content)
    assert rows_of(tmp_path / "b.csv", b" question, answer\nq,1\n").rows == [{"question": "q", "answer": "1"}]


@pytest.mark.parametrize("value", ['"\\ud800"', "9" * 5000, "[" * 100_000])
def test_json_that_no_tool_can_read_is_reported_with_its_place(tmp_path, value):
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: "):
        rows_of(tmp_path / "a.jsonl", f'{{"question": {value}}}'.encode())
    assert rows_of(tmp_path / "b.jsonl", b'{"question": "\\ud83d\\ude00"}').rows == [{"question": "\U0001f600"}]


def test_csv_and_parquet_hold_the_same_rows(tmp_path):
    rows = [{"question": 'say "a",\nthen b', "answer": "1"}, {"question": "q2", "answer": "2"}]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert load_rows(Source(path=str(tmp_path / "a.csv"))).rows == rows
    assert load_rows(Source(path=str(tmp_path / "a.parquet"))).rows == rows
    assert load_rows(Source(path=str(tmp_path / "a.csv"), limit=1)).rows == rows[:1]


def test_a_dataset_in_memory_and_on_the_hub(monkeypatch):
    rows = [{"question": "q", "answer": "1"}]
    assert load_rows(datasets.Dataset.from_list(rows)).rows == rows
    with pytest.raises(DataError, match="give one split"):
        load_rows(datasets.DatasetDict(train=datasets.Dataset.from_list(rows)))

    def offline(path, name, split):
        raise ConnectionError(f"could not reach the hub for {path} {name} {split}")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"openai/gsm8k: neither .*\(ConnectionError: .* openai/gsm8k main train"):
        load_rows(Source(path="openai/gsm8k", subset="main"))


def test_a_missing_or_broken_file_says_so(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        load_rows(Source(path="none.jsonl"))
    with pytest.raises(DataError, match="not readable as Parquet"):
        rows_of(tmp_path / "a.parquet", b"PAR1")


def test_reasoning_gym_tasks_repeat_from_their_seed():
    source = Source(path="reasoning_gym:chain_sum", limit=3, args={"seed": 5, "max_terms": 2, "max_digits": 1})
    table = load_rows(source)
    assert table.rows == load_rows(source).rows
    assert len(table.rows) == 3
    expression = table.rows[0]["metadata"]["expression"]
    assert str(eval(expression)) == table.rows[0]["answer"]
    assert (
        load_rows(Source(path="reasoning_gym:chain_sum")).rows == load_rows(Source(path="reasoning_gym:chain_sum")).rows
    )
    with pytest.raises(DataError, match=r"reasoning_gym:sums .*'sums' not registered"):
        load_rows(Source(path="reasoning_gym:sums"))
    with pytest.raises(DataError, match="max_term"):
        load_rows(Source(path="reasoning_gym:chain_sum", args={"max_term": 2}))


# --- usable rows


def test_unusable_rows_are_reported_by_number(tmp_path):  # case F04
    rows = [{"question": "q1", "answer": "1"}, {"question": "q2"}, {"question": "", "answer": "3"}]
    found, report = made([*rows, {"question": "q4", "answer": ""}])
    assert [q.columns["answer"] for q in found] == ["1"]
    assert (report.rows, report.usable) == (4, 1)
    assert report.rejected == [
        (2, "its answer is missing or empty"),
        (3, "its question is missing or empty"),
        (4, "its answer is missing or empty"),
    ]
    assert "1 of 4 rows usable" in str(report)
    assert "row 3: its question is missing or empty" in str(report)


def test_wrong_columns_are_errors_that_list_those_found():  # case F04
    with pytest.raises(DataError, match="no column prompt or question or problem; the columns found are text, answer"):
        made([{"text": "q", "answer": "1"}])
    with pytest.raises(DataError, match=r"\{solution\} is no column .* found are question, answer"):
        made([{"question": "q1", "answer": "1"}], template="{question} {solution}")
    with pytest.raises(DataError, match=r"tree\.rephrasings is 2, but there is no column rephrasings"):
        made([{"question": "q1", "answer": "1"}], rephrasings=2)


def test_no_usable_row_is_an_error():
    with pytest.raises(DataError, match=r"no usable row(.|\n)*row 1: its question is missing or empty"):
        made([{"question": " ", "answer": "1"}])
    with pytest.raises(DataError, match="no rows"):
        made([])


def test_further_columns_pass_through():  # case F04
    question = only([{"question": "q", "answer": "1", "level": 5, "tests": ["a"]}])
    assert question.columns == {"question": "q", "answer": "1", "level": 5, "tests": ["a"]}


def test_answers_that_look_empty_to_python_are_answers():
    found, _ = made([{"question": "q", "answer": 0}, {"question": "q", "answer": False}])
    assert [q.columns["answer"] for q in found] == [0, False]
    assert made([{"question": "q", "answer": 1.0}, {"question": "q", "answer": float("nan")}])[1].usable == 1


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"answer": "a", "solution": "s"}, "a"),
        ({"solution": "s", "ground_truth": "g"}, "s"),
        ({"ground_truth": "g"}, "g"),
        ({"reward_model": {"style": "rule", "ground_truth": "v"}}, "v"),
        ({"answer": "48/2 = 24\n#### 72"}, "72"),
        ({"solution": "so \\boxed{\\frac{1}{2}}."}, "\\frac{1}{2}"),
        ({"answer": "x\\boxed{1}"}, "x\\boxed{1}"),
    ],
)
def test_the_reference_becomes_the_column_answer(row, answer):
    assert only([{"question": "q", **row}]).columns["answer"] == answer


def test_a_worked_solution_is_kept():
    worked = "48/2 = 24\n#### 72"
    assert only([{"question": "q", "answer": worked}]).columns == {"question": "q", "answer": "72", "solution": worked}


def test_rows_without_any_answer_column_are_usable():
    assert made([{"question": "q1"}, {"question": "q2"}])[1].usable == 2


def test_ids_are_the_rows_own_where_they_are_unique():
    rows = [{"question": "q1", "id": "a"}, {"question": ""}, {"question": "q3", "id": "b"}]
    assert [q.id for q in made(rows)[0]] == ["a", "b"]
    rows[2]["id"] = "a"
    assert [q.id for q in made(rows)[0]] == ["1", "3"]


# --- prompts


def test_a_template_without_a_place_for_the_question_is_refused():
    with pytest.raises(DataError, match="no place for the question"):
        made([{"question": "a"}], template="Think step by step.")


def test_rows_that_share_an_id_are_named():
    found, report = made([{"question": q, "id": i} for q, i in (("a", "x"), ("b", None), ("c", "x"))])
    assert [q.id for q in found] == ["1", "2", "3"] and "rows 1, 3 have the id 'x'" in str(report)
    assert made([{"question": "a", "id": None}, {"question": "b", "id": "z"}])[0][0].id == "1"


def test_parts_of_a_message_may_be_bare_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    question = only([{"prompt": [{"role": "user", "content": ["What is", {"type": "image", "image": "a.png"}]}]}])
    parts = question.phrasings[0][0]["content"]
    assert parts == [{"type": "text", "text": "What is"}, {"type": "image"}]


def test_system_prompt_examples_and_template_make_chat_turns():
    question = only(
        [{"problem": "2+2?", "answer": "4", "unit": "apples"}],
        system_prompt="Think.",
        examples=[{"question": "1+1?", "response": "2"}],
        template="{problem} In {unit}, as \\boxed{answer} or \\boxed{} {{so}}.",
    )
    assert question.phrasings == (
        [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "2+2? In apples, as \\boxed{answer} or \\boxed{} {so}."},
        ],
    )


def test_a_row_that_lacks_what_the_template_needs_is_rejected():
    found, report = made(
        [{"question": "q", "unit": "m"}, {"question": "r", "unit": None}], template="{question} {unit}"
    )
    assert len(found) == 1
    assert report.rejected == [(2, "data.template needs its column unit, which is missing")]


def test_a_text_prompt_stays_text_unless_turns_are_put_before_it():
    assert only([{"prompt": "2+2=", "rephrasings": ["two and two is"]}], 1).phrasings == ("2+2=", "two and two is")
    turns = only([{"prompt": "2+2="}], system_prompt="s").phrasings[0]
    assert turns == [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2="}]
    turns = only([{"prompt": "2+2="}], examples=[{"question": "1+1=", "response": "2"}]).phrasings[0]
    assert [turn["content"] for turn in turns] == ["1+1=", "2", "2+2="]


def test_rephrasings_of_messages_replace_the_last_user_message():
    messages = [
        {"role": "system", "content": "old"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "q"},
    ]
    question = only([{"prompt": messages, "rephrasings": ["r"]}], 1, system_prompt="new")
    assert question.phrasings[0] == [{"role": "system", "content": "new"}, *messages[1:]]
    assert question.phrasings[1] == [*question.phrasings[0][:3], {"role": "user", "content": "r"}]
    assert only([{"prompt": messages}]).phrasings[0] == messages


def test_nulls_that_arrow_fills_in_are_no_parts(tmp_path, monkeypatch):  # case F05
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    parts = [{"type": "text", "text": "q", "image": None}, {"type": "image", "text": None, "image": "a.png"}]
    row = {"prompt": [{"role": "user", "name": None, "content": parts}], "rephrasings": ["r"]}
    question = only(datasets.Dataset.from_list([row]), 1)
    assert [picture.source.name for picture in question.images] == ["a.png"]
    image = {"type": "image"}
    assert only([{"prompt": [{"role": "user", "content": [*parts, parts[0]]}]}]).phrasings[0][0]["content"] == [
        {"type": "text", "text": "q"},
        image,
        {"type": "text", "text": "q"},
    ]
    assert question.phrasings[0] == [{"role": "user", "content": [{"type": "text", "text": "q"}, image]}]
    assert question.phrasings[1] == [{"role": "user", "content": [{"type": "text", "text": "r"}, image]}]


def test_rephrasings_are_capped_and_never_empty_or_repeated():
    rephrasings = [None, " ", "what  is it", "a", "b ", "a", "c"]
    question, report = made([{"question": "what is it", "rephrasings": rephrasings}], 2)
    assert [p[0]["content"] for p in question[0].phrasings] == ["what is it", "a", "b "]
    assert report.rephrasings == 2
    assert report.left_out == {"empty": 2, "the same as the original or as another": 2, "beyond tree.rephrasings": 1}
    assert len(only([{"question": "q", "rephrasings": rephrasings}]).phrasings) == 1


def test_rephrasings_in_a_cell_are_a_json_list():
    assert len(only([{"question": "q", "rephrasings": '["a", "b"]'}], 5).phrasings) == 3
    with pytest.raises(DataError, match="row 1: rephrasings is a list of texts"):
        made([{"question": "q", "rephrasings": "a"}], 5)
    found, _ = made([{"question": "q", "rephrasings": None}, {"question": "q", "rephrasings": ["a"]}], 5)
    assert [len(q.phrasings) for q in found] == [1, 2]


# --- the order of drawing


def test_an_epoch_draws_every_question_once_and_the_next_in_another_order():
    stream = Stream(10, seed=3)
    draws = [pair for _ in range(10) for pair in stream.take(2)]
    assert [draw for draw, _ in draws] == list(range(20))
    first, second = ([index for _, index in draws[i : i + 10]] for i in (0, 10))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert first != list(range(10))
    assert Stream(10, seed=4).take(10) != draws[:10]


def test_a_stream_goes_on_from_its_cursor():  # case B21
    whole = Stream(10, seed=0).take(25)
    before = Stream(10, seed=0)
    seen = before.take(4)
    assert seen + Stream(10, seed=0, cursor=before.cursor).take(21) == whole


def test_without_shuffling_the_data_keep_their_order():
    assert [index for _, index in Stream(3, seed=0, shuffle=False).take(7)] == [0, 1, 2, 0, 1, 2, 0]


# --- other people's data


@shared_data
@pytest.mark.parametrize("name", ["gsm8k_test", "math500", "svamp", "olympiadbench", "rephrasings_gsmplus"])
def test_shared_data_are_usable_to_the_last_row(name):
    _, report = questions(load_rows(Source(path=str(SHARED / f"{name}.jsonl"))), DataConfig(), 0)
    assert report.usable == report.rows
    assert report.rejected == []


@shared_data
def test_shared_rephrasings_join_their_questions():
    found, report = questions(load_rows(Source(path=str(SHARED / "rephrasings_gsmplus.jsonl"))), DataConfig(), 3)
    assert sum(len(q.phrasings) - 1 for q in found) == report.rephrasings >= 295
