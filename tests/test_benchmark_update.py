"""The benchmark of one update, on a tiny model."""

import copy
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import Qwen3Config

pytest.importorskip("trl", reason="TRL is a development dependency: pip install 'branchwise[dev]'")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "update.py"


@pytest.fixture(scope="module")
def update():
    spec = importlib.util.spec_from_file_location("update", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["update"] = module
    spec.loader.exec_module(module)
    module.MODELS["tiny"] = Qwen3Config(
        vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    return module


def test_contenders_agree_and_are_reported(update, monkeypatch, capsys):
    shapes = (
        update.Shape(8, 2, 6, 2, 3, model="tiny"),
        update.Shape(8, 3, 6, 3, 4, questions=2, ragged=True, bfloat16=True, model="tiny"),
        update.Shape(8, 4, 6, 1, 0, model="tiny"),
    )
    monkeypatch.setattr(update, "SHAPES", shapes)
    monkeypatch.setattr(sys, "argv", ["update.py", "--json", "--pairs", "1"])
    update.main()
    results = json.loads(capsys.readouterr().out)
    assert [r["shape"] for r in results] == ["8,2,6,2,3", "8,3,6,3,4 ragged 2 questions bfloat16", "8,4,6,1,0"]
    # 4 rows of 8 + 6 + 3 tokens, of a tree of 8 + 2·6 + 4·3; 4 rows of 8 + 6 of a tree of 8 + 4·6
    assert (results[0]["token_ratio"], results[2]["token_ratio"]) == (2.12, 1.75)
    for result in results:
        assert set(result["seconds"]) == set(result["peak_mb"]) == {"branchwise", "rows", "trl"}
        for name in ("rows", "trl"):
            seconds = result["seconds"]
            assert result["ratio"][name] == pytest.approx(seconds[name] / seconds["branchwise"], rel=0.3)


@pytest.mark.parametrize("wrong", ["branchwise", "trl"])
def test_a_contender_with_another_loss_is_refused(update, monkeypatch, wrong):
    right = getattr(update, wrong)

    def shifted(model, trees, credits, config):
        trees = copy.deepcopy(trees)
        thought = trees[0].nodes[1]
        thought.ids_T = thought.ids_T[::-1]
        return right(model, trees, credits, config)

    shifted.__name__ = wrong
    monkeypatch.setattr(update, wrong, shifted)
    with pytest.raises(AssertionError, match="differs from that of rows"):
        update.measure(update.Shape(8, 2, 6, 2, 3, model="tiny"), pairs=1)


def test_with_images_rows_agree_and_encode_each_their_own(update, monkeypatch, capsys):
    large = update.MODELS["Qwen2.5-VL-30M"]
    small = copy.deepcopy(large)
    for name, value in {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 1,
                        "num_key_value_heads": 1, "vocab_size": 31}.items():  # fmt: skip
        setattr(small.text_config, name, value)
    for name, value in {"depth": 1, "hidden_size": 16, "num_heads": 1, "out_hidden_size": 32}.items():
        setattr(small.vision_config, name, value)
    small.text_config.rope_parameters["mrope_section"] = [4, 6, 6]
    monkeypatch.setitem(update.MODELS, "Qwen2.5-VL-30M", small)
    shape = update.Shape(306, 2, 6, 2, 3, model="Qwen2.5-VL-30M", image=True, questions=2, ragged=True)
    shapes = (shape, replace(shape, questions=3, pack_tokens=8192, checkpointing=True))
    monkeypatch.setattr(update, "VISION", shapes)
    monkeypatch.setattr(sys, "argv", ["update.py", "--vision", "--json", "--pairs", "1"])
    update.main()
    results = json.loads(capsys.readouterr().out)
    assert [r["shape"].partition("image ")[2] for r in results] == [
        "ragged 2 questions", "ragged 3 questions in one pack checkpointed"
    ]  # fmt: skip
    assert all(result["ratio"].keys() == {"rows"} and result["token_ratio"] > 3 for result in results)
