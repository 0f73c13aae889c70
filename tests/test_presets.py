"""Presets have their method's shape, and the papers' runs load."""

from pathlib import Path

import pytest

from branchwise.config import load_config, preset_names, preset_path

RECIPES = Path(__file__).parents[1] / "recipes"
RUNS = sorted(RECIPES.glob("*grpo-*.yaml"))
MATCHED = ["qwen3-1.7b", "qwen3-4b", "llama-3.2-1b", "llama-3.2-3b"]


def preset(name, **sections):
    return load_config({"preset": name, "model": {"path": "somewhere"}, **sections})


def test_there_are_nine():
    expected = ["cispo", "dapo", "dr-grpo", "gspo", "grpo", "grpo-ma", "rloo", "ta-grpo", "ta-grpo-ma"]
    assert preset_names() == sorted(expected)


SHAPES = [  # N > 0, M > 1, pool, anchored to the original
    *[(name, False, False, "phrasing") for name in ("grpo", "dr-grpo", "dapo", "gspo", "cispo", "rloo")],
    ("grpo-ma", False, True, "phrasing"),
    ("ta-grpo", True, False, "question"),
    ("ta-grpo-ma", True, True, "question"),
]


@pytest.mark.parametrize(("name", "rephrased", "several_answers", "pool"), SHAPES)
def test_the_tree_is_the_methods(name, rephrased, several_answers, pool):
    c = preset(name)
    assert (c.tree.rephrasings > 0, c.tree.answers > 1) == (rephrased, several_answers)
    assert c.algorithm.pool == pool
    assert c.joint is not several_answers
    assert not rephrased or c.algorithm.anchor == "original"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("grpo", {"scale": "group", "aggregation": "sequence", "ratio": "token", "kl": 0}),
        ("dr-grpo", {"scale": "none", "aggregation": "constant", "kl": 0}),
        ("dapo", {"scale": "group", "aggregation": "token", "clip_low": 0.2, "clip_high": 0.28, "kl": 0}),
        ("gspo", {"ratio": "sequence", "aggregation": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}),
        ("cispo", {"surrogate": "cispo", "aggregation": "token", "cispo_cap": 5}),
        ("rloo", {"baseline": "leave_one_out", "scale": "none", "aggregation": "constant"}),
        ("grpo-ma", {"segments": "split", "aggregation": "sequence", "answer_weight": 1}),
        ("ta-grpo", {"ddof": 1, "eps": 1e-6, "kl": 0.001, "dual_clip": 3, "aggregation": "token"}),
        ("ta-grpo-ma", {"segments": "split", "aggregation": "sequence"}),
    ],
)
def test_the_objective_is_the_papers(name, settings):
    algorithm = preset(name).algorithm.model_dump()
    assert {key: algorithm[key] for key in settings} == settings


def test_dapo_replaces_uniform_pools_and_shapes_overlong_responses():
    c = preset("dapo")
    assert c.tree.uniform == "resample"
    assert 0 < c.algorithm.overlong_buffer < c.sampling.max_thought_tokens + c.sampling.max_answer_tokens


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_short_and_cites_its_paper(name):
    first, *others = preset_path(name).read_text().splitlines()
    assert "arXiv" in first and len(others) < 25
    assert first.endswith(".") and len(first) <= 110  # it is what the list of presets shows


def test_there_are_twelve_of_the_papers_runs():
    assert len(RUNS) == 12


@pytest.mark.parametrize("recipe", RUNS, ids=lambda path: path.stem)
def test_a_recipe_loads_from_a_preset_and_names_its_gpu(recipe):
    c = load_config(recipe)
    assert c.preset and c.data.train and "GPU of" in recipe.read_text()
    assert c.train.output_dir == f"runs/{recipe.stem}"


@pytest.mark.parametrize("model", MATCHED)
def test_grpo_and_ta_grpo_spend_the_same_rollouts(model):
    grpo, ta = load_config(RECIPES / f"grpo-{model}.yaml"), load_config(RECIPES / f"ta-grpo-{model}.yaml")
    rollouts = [(1 + c.tree.rephrasings) * c.tree.thoughts * c.tree.answers for c in (grpo, ta)]
    assert rollouts == [32, 32]
    assert (grpo.model, grpo.sampling, grpo.rewards) == (ta.model, ta.sampling, ta.rewards)
    assert grpo.train == ta.train.model_copy(update={"output_dir": grpo.train.output_dir})
    same = {"pool": "question"}  # all that their objectives differ in
    assert grpo.algorithm.model_copy(update=same) == ta.algorithm
    assert (grpo.tree.marker is None) == model.startswith("llama")


@pytest.mark.parametrize(("thoughts", "answers"), [(4, 1), (4, 4), (8, 2), (16, 1)])
def test_grpo_mas_shapes(thoughts, answers):
    c = load_config(RECIPES / f"grpo-ma-t{thoughts}a{answers}.yaml")
    assert (c.tree.thoughts, c.tree.answers, c.algorithm.kl) == (thoughts, answers, 0)
    assert c.preset == ("grpo-ma" if answers > 1 else "grpo")
