"""Recipes on images: the paper's tasks take the rows that they document, and pictures of shapes are what they say."""

import base64
import io
import json
import re
import sys
from pathlib import Path

import pytest
import vision_families
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from typer.testing import CliRunner

from branchwise.cli import app
from branchwise.config import DataConfig, Source, load_config
from branchwise.data.load import load_rows
from branchwise.data.questions import questions
from branchwise.plugins import load_function
from branchwise.rewards.run import BUILT_IN

ROOT = Path(__file__).parents[1]
VISION = ROOT / "recipes" / "vision"
SHAPES = ROOT / "recipes" / "shapes"

ANSWERS = {  # of each of the paper's tasks: an answer to the documented row, and what it is paid
    "question-answering": ("No Parking.", 1),
    "detection": ("[120, 40, 310, 150]", 0.5),
    "affordance": ("[88, 61, 130, 142]", 1),
    "trajectories": ("[[410, 95], [380, 180], [352, 240]]", 1),
    "demand": ("[250, 170]", 1),
    "manipulation": ("[[230, 160], [1, 2]]", 0.6),  # (−0.5, 1) and (1, 2): 1.5 / (√1.25 · √5)
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model of the family that the recipes train, in a folder."""
    folder = tmp_path_factory.mktemp("model")
    made, processor = vision_families.build("qwen2_5_vl")
    made.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def documented_row(recipe):
    (row,) = re.findall(r"^#   (\{.*\})$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    return json.loads(row)


def test_each_of_the_papers_tasks_has_a_recipe():
    assert {file.stem for file in VISION.glob("*.yaml")} == ANSWERS.keys()


@pytest.mark.parametrize("task", ANSWERS)
def test_a_recipe_takes_the_row_that_it_documents(task, model, tmp_path, monkeypatch):
    recipe, row = VISION / f"{task}.yaml", documented_row(VISION / f"{task}.yaml")
    Image.new("RGB", (480, 320)).save(tmp_path / row["image"])
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.chdir(ROOT)
    data = [f"data.train={tmp_path / 'data.jsonl'}", "data.max_pixels=1024"]
    result = CliRunner().invoke(app, ["train", str(recipe), "--dry-run", f"model.path={model}", *data])
    assert result.exit_code == 0 and "1 of 1 rows usable" in result.output, result.output
    c = load_config(recipe)
    assert (c.tree.thoughts, c.tree.answers, c.train.output_dir) == (4, 4, f"runs/{task}")
    assert c.model.lora and c.model.freeze_vision and "GPU of" in recipe.read_text()


@pytest.mark.parametrize("task", ANSWERS)
def test_a_recipe_pays_an_answer_to_it(task, monkeypatch):
    monkeypatch.chdir(ROOT)
    (reward,) = load_config(VISION / f"{task}.yaml").rewards
    name = reward.function
    function = load_function(f"branchwise.rewards.{name}.{name}" if name in BUILT_IN else name)
    answer, paid = ANSWERS[task]
    row = documented_row(VISION / f"{task}.yaml") | {"width": 480, "height": 320} | reward.args
    columns = {key: [value] for key, value in row.items() if key not in reward.args}
    assert function(completions=[answer], answers=[answer], **columns, **reward.args) == [pytest.approx(paid)]


@pytest.mark.parametrize(
    ("answer", "references", "paid"),
    [
        ("No  Parking.", "no parking", 1),
        ("<answer>exit</answer>", ["way out", "exit"], 1),
        ("no parkin", "no parking", 0.9),  # one of ten characters is missing
        ("abcd", "abxy", 0.5),
        ("abcde", "abxyz", 0),  # 0.4
        ("", "exit", 0),
    ],
)
def test_short_answers_are_paid_by_their_likeness(answer, references, paid):
    short_answer = load_function(f"{VISION / 'rewards.py'}:short_answer")
    assert short_answer(answers=[answer], answer=[references]) == [pytest.approx(paid)]


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("[[10, 10], [0, 3]]", 1),
        ("[[10, 10], [3, 3]]", 0.5**0.5),
        ("[[10, 10], [0, -3]]", 0),  # the other way
        ("[[21, 10], [0, 3]]", 0),  # beside it
        ("[[10, 10], [0, 0]]", 0),
        ("[10, 10]", 0),
        ("", 0),
    ],
)
def test_a_contact_is_paid_by_its_pull(answer, paid):
    contact = load_function(f"{VISION / 'rewards.py'}:contact")
    assert contact(answers=[answer], answer=[[0, 0, 20, 20]], direction=[[0, 1]]) == [pytest.approx(paid)]


@pytest.fixture(scope="module")
def shapes():
    """The recipe's modules of pictures and data."""
    sys.path.insert(0, str(SHAPES))
    import make_data

    yield make_data
    sys.path.remove(str(SHAPES))
    for name in ("make_data", "make_model", "scenes"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def drawn(shapes, tmp_path_factory):
    """A folder with the recipe's data."""
    shapes.FOLDER = tmp_path_factory.mktemp("shapes") / "data"
    shapes.main()
    return shapes.FOLDER


def test_no_picture_is_both_held_out_and_trained_on(shapes):
    held_out = {p.shapes for p in shapes.held_out()}
    drawn = shapes.train() + [p for p, _ in zip(shapes.warm_up(), range(500))]
    assert len(held_out) == shapes.HELD_OUT and not any(p.shapes in held_out for p in drawn)


def test_pictures_and_questions_load_with_their_rephrasings(shapes, drawn):
    found, report = questions(load_rows(Source(path=str(drawn / "train.jsonl"))), DataConfig(), rephrasings=3)
    assert report.usable == shapes.TRAIN and not report.rejected and all(len(q.phrasings) == 4 for q in found)
    assert {q.images[0].size for q in found} == {(64, 64)}
    assert {part["type"] for q in found for prompt in q.phrasings for part in prompt[-1]["content"]} == {
        "image",
        "text",
    }


def test_right_answers_are_paid_one_and_wrong_ones_less(shapes):
    by_task = load_function(f"{SHAPES / 'rewards.py'}:by_task")
    problems = shapes.held_out()
    means = {}

    def pay(answers):
        columns = {"answer": [p.answer for p in problems], "choices": [p.choices for p in problems]}
        sizes = {"width": [64] * len(problems), "height": [64] * len(problems)}
        tasks = [p.task for p in problems]
        return by_task(tasks, means.__setitem__, completions=answers, answers=answers, **columns, **sizes)

    assert pay([str(p.answer) for p in problems]) == [1.0] * len(problems)
    wrong = pay([str(p.answer) for p in problems[1:] + problems[:1]])
    assert None not in wrong and sum(wrong) / len(wrong) < 0.3
    assert means.keys() == {f"reward_{task}" for task in ("count", "colour", "position", "box", "path")}


def test_a_picture_shows_what_its_problem_says(shapes):
    for p in shapes.held_out()[:50]:
        image = p.picture()
        for shape in p.shapes:
            x, y = shape.centre
            red, green, blue = image.getpixel((x, y))
            names = {(214, 40, 40): "red", (40, 150, 70): "green", (40, 80, 210): "blue", (245, 150, 20): "orange"}
            assert names[red, green, blue] == shape.colour


def test_the_model_loads_with_its_processor_and_takes_the_data(shapes, drawn, tmp_path, monkeypatch):
    import make_model

    monkeypatch.chdir(ROOT)
    make_model.make(tmp_path, seeing=1, steps=1)
    assert 2e6 < AutoModelForImageTextToText.from_pretrained(tmp_path).num_parameters() < 6e6
    tokenizer = AutoProcessor.from_pretrained(tmp_path).tokenizer
    for p in shapes.held_out():  # a word or number is a token
        assert tokenizer.decode(tokenizer(p.response)["input_ids"]) == p.response
        assert len(tokenizer(p.thought)["input_ids"]) <= 17  # three shapes of five, two commas
    data = [f"data.train={drawn / 'train.jsonl'}", f"data.eval={drawn / 'heldout.jsonl'}"]
    recipe = str(SHAPES / "ta-grpo-ma.yaml")
    result = CliRunner().invoke(app, ["train", recipe, "--dry-run", f"model.path={tmp_path}", *data])
    assert result.exit_code == 0 and "400 of 400 rows usable" in result.output, result.output


def test_what_patches_learn_to_tell(shapes):
    """A red square around (20, 30), in the second patch of the second row of four."""
    import make_model
    import scenes

    tokenizer = make_model.make_tokenizer()
    square = scenes.Shape("red", "square", (14, 24, 26, 36))
    drawn = scenes.Problem("count", (square,), (), ("red",), square.seen, "1")
    told, box = make_model.patches_of([drawn], tokenizer)
    assert tokenizer.convert_ids_to_tokens(told[0, 5].tolist()) == ["Ġred", "Ġsquare", "Ġx20", "Ġy30", "Ġw12"]
    assert (box[0, 5] * 64).tolist() == [14, 24, 26, 36]
    others = [i for i in range(16) if i != 5]
    assert set(told[0, others, 0].tolist()) == {tokenizer.convert_tokens_to_ids(".")} and not box[0, others].any()


@pytest.mark.parametrize("method", ["grpo", "grpo-ma", "ta-grpo-ma"])
def test_the_methods_spend_the_same_rollouts_on_shapes(method):
    c = load_config(SHAPES / f"{method}.yaml")
    assert (1 + c.tree.rephrasings) * c.tree.thoughts * c.tree.answers == 16
    others = load_config(SHAPES / "grpo.yaml")
    assert (c.data, c.sampling, c.rewards, c.model) == (others.data, others.sampling, others.rewards, others.model)
    assert c.train.model_copy(update={"output_dir": "runs/shapes-grpo"}) == others.train


def test_nlvr_pictures_load_as_data(shared_data, tmp_path):
    """Real pictures, as base64 in a column of another name."""
    lines = (shared_data / "nlvr_dev.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    images = [row.pop("image_png_base64") for row in rows]
    table = tmp_path / "nlvr.jsonl"
    table.write_text("".join(json.dumps({**row, "image": image}) + "\n" for row, image in zip(rows, images)))
    found, report = questions(load_rows(Source(path=str(table))), DataConfig())
    assert report.usable == len(rows) and not report.rejected
    for question, image in zip(found, images):
        own = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
        assert question.images[0].image().tobytes() == own.tobytes()
