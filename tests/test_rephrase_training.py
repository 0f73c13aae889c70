"""Training runs that write their own rephrasings."""

import json
from pathlib import Path

import pytest
import tiny
import yaml
from byte_tokenizer import byte_tokenizer
from chat_server import Answer, ChatServer, limit
from warm import start_two

from branchwise import ConfigError, Trainer, load_config
from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import Rows
from branchwise.errors import WorkStopped
from branchwise.rephrase.local import of_engine
from branchwise.rephrase.run import rephrase
from branchwise.rephrase.writer import Order, Settings

ROWS = [
    {
        "question": f"Ann has {a} red apples. Ben buys {b} green pears. How many are they?",
        "answer": str(a + b),
    }
    for a, b in ((13, 24), (31, 42), (25, 27), (15, 21))
]
EMPTY = {"question": "13+24=?", "answer": "37"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    tiny.llama(vocabulary=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def even(completion_ids, **_):
    return [len(ids) % 2 + ids[0] / 1000 for ids in completion_ids]


def settings(folder, **rephrase):
    return {
        "tree": {"thoughts": 2, "rephrasings": 2, "marker": None},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 5, "max_answer_tokens": 1},
        "train": {"output_dir": str(folder), "steps": 3, "questions": 2, "precision": "float32", "device": "cpu"},
        "rephrase": rephrase,
    }


def trees(folder):
    files = sorted((Path(folder) / "trees").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_the_rules_write_for_a_run_and_unequal_pools_train(model, tmp_path):
    trainer = Trainer(model, [even], [*ROWS[:3], EMPTY], config=settings(tmp_path, writer="rules", kinds=["format"]))
    assert [len(question.phrasings) for question in trainer.questions] == [3, 3, 3, 1]
    trainer.train()
    grown = {len([n for n in tree["nodes"] if n["kind"] == "phrasing"]) for tree in trees(tmp_path)}
    assert grown == {1, 3}
    records = (tmp_path.with_name(f"{tmp_path.name}-rephrase") / "train.records.jsonl").read_text().splitlines()
    assert len(records) == 6 and json.loads(records[0])["kind"] in ("layout", "number_form")
    assert any("6 rephrasings of 4 questions" in note for note in trainer.notes)


def test_the_policy_writes_for_itself_and_is_not_asked_twice(model, tmp_path):
    config = settings(tmp_path, writer="policy", max_tokens=8, skip_checks=["numbers", "scaffold", "length", "topic",
                      "variables", "units", "latex", "form", "control"])  # fmt: skip
    first = Trainer(model, [even], ROWS[:2], config=config)
    again = Trainer(model, [even], ROWS[:2], config=config)
    assert [q.phrasings for q in first.questions] == [q.phrasings for q in again.questions]
    assert any("0 requests sent" in note for note in again.notes)
    again.train()


def test_what_a_local_writer_says_does_not_depend_on_who_else_is_asked(model, tmp_path):
    import asyncio

    trainer = Trainer(model, [even], ROWS, config={k: v for k, v in settings(tmp_path).items() if k != "rephrase"}
                      | {"tree": {"thoughts": 2, "marker": None}})  # fmt: skip
    orders = [Order("policy", f"Say {i % 3}", "v", i, Settings(max_tokens=6)) for i in range(6)]

    async def ask(orders):
        writer = of_engine("policy", trainer.engine, trainer.tokenizer, {})
        replies = await asyncio.gather(*(writer.ask(order, lambda: None) for order in orders))
        await writer.close()
        return replies

    together = asyncio.run(ask(orders))
    alone = [asyncio.run(ask([order]))[0] for order in orders]
    assert together == alone and len({reply.text for reply in together}) > 1
    assert all(0 < reply.reply_tokens <= 6 and reply.finish in ("stop", "length") for reply in together)


def test_a_run_that_is_begun_again_and_again_pays_once(model, tmp_path):
    """The first run's folder is moved aside by the second, and the second's by the third."""
    with ChatServer(
        lambda seen, number: Answer(text=f"At home, {seen.question[0].lower()}{seen.question[1:]}")
    ) as server:
        config = settings(tmp_path / "run", writer="openai:tiny", base_url=server.url)
        config["tree"]["rephrasings"], config["train"]["steps"] = 1, 1
        for _ in range(3):
            Trainer(model, [even], ROWS, config=config).train()
            assert len(server.seen) == len(ROWS)
    assert (tmp_path / "run.2" / "metrics.jsonl").exists()


def test_an_engine_that_breaks_ends_the_work_and_keeps_what_came(model, tmp_path):
    trainer = Trainer(model, [even], ROWS, config={k: v for k, v in settings(tmp_path).items() if k != "rephrase"}
                      | {"tree": {"thoughts": 2, "marker": None}})  # fmt: skip
    grow, calls = trainer.engine.grow, []

    def breaks(limbs, sampling):
        calls.append(len(limbs))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        grow(limbs, sampling)

    trainer.engine.grow = breaks
    config = RephraseConfig(writer="policy", max_tokens=4, concurrency=2, attempts=1, kinds=["wording"])
    rows, store = Rows("rows", ROWS), tmp_path / "replies.sqlite"
    with pytest.raises(RuntimeError, match="out of memory"):
        rephrase(rows, 1, config, store, of_engine("policy", trainer.engine, trainer.tokenizer, {}))
    result = rephrase(rows, 1, config, store, of_engine("policy", trainer.engine, trainer.tokenizer, {}))
    assert calls[0] == 2 and (result.found, result.sent) == (2, 2)


def test_an_endpoint_that_stops_the_work_stops_the_run_and_the_next_goes_on(model, tmp_path):
    def sound(seen, number):
        return Answer(text=f"At home, {seen.question[0].lower()}{seen.question[1:]}")

    spent = [limit("1", code="insufficient_quota")]
    with ChatServer(
        lambda seen, number: spent[0] if spent and "31" in seen.question else sound(seen, number)
    ) as server:
        config = settings(tmp_path, writer="openai:tiny", base_url=server.url, concurrency=1)
        config["tree"]["rephrasings"] = 1
        with pytest.raises(WorkStopped, match="quota"):
            Trainer(model, [even], ROWS, config=config)
        spent.clear()
        trainer = Trainer(model, [even], ROWS, config=config)
    assert [len(question.phrasings) for question in trainer.questions] == [2] * 4
    assert len(server.seen) == 5


def files_of_a_run(model, folder, rows=ROWS, **rephrase):
    """The config's file, for the command line."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = settings(folder / "run", **rephrase)
    values |= {"model": {"path": model}, "data": {"train": str(folder / "rows.jsonl")}}
    values["rewards"] = [f"{Path(__file__).with_name('letters.py')}:hardly_ever_equal"]
    values["train"] |= {"questions": 4, "steps": 2}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return folder / "run.yaml"


@pytest.mark.slow
def test_of_two_processes_one_asks_and_both_train_on_what_came(model, warm, tmp_path):
    def sound(seen, number):
        return Answer(text=f"At home, {seen.question[0].lower()}{seen.question[1:]}", delay=0.3)

    with ChatServer(sound) as server:
        config = files_of_a_run(model, tmp_path, writer="openai:tiny", base_url=server.url, kinds=["wording"])
        pair = start_two(warm, "train", config)
        codes = [command.wait() for command in pair]
    # two slots a question; the second reply is the first again and is asked for three times
    assert codes == [0, 0], [command.output for command in pair]
    assert len(server.seen) == len({seen.mark for seen in server.seen})
    wordings = {
        tree["question"]["id"]: [node["wording"] for node in tree["nodes"] if node["kind"] == "phrasing"]
        for tree in trees(tmp_path / "run")
    }
    assert sorted(wordings) == ["1", "2", "3", "4"]  # the two processes' together
    for row, (original, *others) in zip(ROWS, (wordings[key] for key in sorted(wordings))):
        assert original == row["question"] and others == [f"At home, {original[0].lower()}{original[1:]}"]


@pytest.mark.slow
@pytest.mark.parametrize(("address", "code", "words"), [(None, 1, "quota"), ("localhost", 2, "is no address")])
def test_of_two_processes_both_end_where_the_writer_cannot_write(model, warm, tmp_path, address, code, words):
    with ChatServer(lambda seen, number: limit("1", code="insufficient_quota")) as server:
        config = files_of_a_run(model, tmp_path, writer="openai:tiny", base_url=address or server.url)
        pair = start_two(warm, "train", config)
        assert [command.wait() for command in pair] == [code, code], [command.output for command in pair]
    assert all(words in command.output and "Traceback" not in command.output for command in pair)


@pytest.mark.slow
def test_of_two_processes_one_writes_for_itself(model, warm, tmp_path):
    config = files_of_a_run(
        model, tmp_path, writer="policy", max_tokens=8, skip_checks=["numbers", "scaffold", "length", "topic",
        "variables", "units", "latex", "form", "control"],
    )  # fmt: skip
    pair = start_two(warm, "train", config)
    assert [command.wait() for command in pair] == [0, 0], [command.output for command in pair]
    assert sum("rephrasings of 4 questions" in command.output for command in pair) == 1
    assert len({tree["question"]["id"] for tree in trees(tmp_path / "run")}) == 4


def test_settings_that_cannot_be_are_refused():
    model = {"path": "x"}
    with pytest.raises(ConfigError, match=r"tree\.rephrasings"):
        load_config({"model": model, "rephrase": {}})
    for anchor, fine in (("original", False), ("behaviour", True)):
        values = {"model": model, "tree": {"rephrasings": 1}, "rephrase": {"kinds": ["wording", "variables"]},
                  "algorithm": {"anchor": anchor, "pool": "question"}}  # fmt: skip
        if fine:
            load_config(values)
        else:
            with pytest.raises(ConfigError, match="letters"):
                load_config(values)
    with pytest.raises(ConfigError, match="did you mean 'writer'"):
        load_config({"model": model, "tree": {"rephrasings": 1}, "rephrase": {"writr": "rules"}})


def test_a_dry_run_tells_what_the_rephrasings_would_cost(model, tmp_path):
    from branchwise.train.dry_run import dry_run

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    values = settings(tmp_path / "run", writer="openai:gpt-4-turbo")
    values |= {"model": {"path": model}, "data": {"train": str(tmp_path / "rows.jsonl")}}
    lines = list(dry_run(load_config(values)))
    assert any("openai:gpt-4-turbo: 8 requests" in line and "$" in line for line in lines)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["policy", "rules"])
def test_smollm2_trains_three_steps_on_what_it_or_the_rules_wrote(smollm2, tmp_path, writer):
    """A model this small answers questions whatever it is asked to do with them; it can only put a word before them."""
    (tmp_path / "wording.txt").write_text('Repeat the following sentence, beginning with "Please": {question}')
    lines = (Path(__file__).parents[1] / "recipes" / "quickstart" / "train.jsonl").read_text().splitlines()[:8]
    rows = [{key: json.loads(line)[key] for key in ("question", "answer")} for line in lines]
    config = {
        "preset": "ta-grpo",
        "data": {"examples": [{"question": "Calculate 3 + 4.", "response": "<think>3 + 4 = 7</think>\\boxed{7}"}]},
        "rephrase": {
            "writer": writer, "kinds": ["wording"], "prompts": str(tmp_path), "max_tokens": 40, "temperature": 0.4,
        },
        "tree": {"thoughts": 2, "rephrasings": 2},
        "sampling": {"temperature": 0.6, "max_thought_tokens": 24, "max_answer_tokens": 8},
        "train": {"steps": 3, "questions": 2, "output_dir": str(tmp_path / "run")},
    }  # fmt: skip
    trainer = Trainer(smollm2, train_dataset=rows, config=config)
    sizes = {question.id: len(question.phrasings) for question in trainer.questions}
    assert len(sizes) == 8 and (set(sizes.values()) == {3} if writer == "rules" else sum(sizes.values()) > 8)
    trainer.train()
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 3
    for tree in trees(tmp_path / "run"):
        prompts = [node["text"] for node in tree["nodes"] if node["kind"] == "phrasing"]
        assert len(prompts) == len(set(prompts)) == sizes[tree["question"]["id"]]
