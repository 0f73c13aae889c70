"""Whole runs of tiny vision-language models."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import vision_families
from test_vision import encoder
from typer.testing import CliRunner
from vision_families import picture

from branchwise import ConfigError, Trainer
from branchwise.cli import app
from branchwise.train.tree_log import read_trees


def rows(folder):
    """A question with a file, one with two images in memory, one without any."""
    picture(0, 40, 24).save(folder / "a.png")
    picture(1, 16, 24).save(folder / "b.png")
    return [
        {"question": "1+2=", "answer": "3", "image": str(folder / "a.png"), "rephrasings": ["2+1="]},
        {"question": "<image>+<image>=", "answer": "5", "images": [picture(2), picture(3)], "rephrasings": []},
        {"question": "3+4=", "answer": "7", "rephrasings": ["4+3="]},
        {"question": "1+2=", "answer": "4", "image": str(folder / "b.png"), "rephrasings": ["2+1="]},
    ]


def likes_a(completions, completion_ids, **_):
    """Share of the letter a among the tokens."""
    return [ids.count(21) / len(ids) for ids in completion_ids]


def settings(folder, **sections):
    base = {
        "tree": {"thoughts": 3, "answers": 2, "rephrasings": 1},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 12, "max_answer_tokens": 5, "kv_memory_gb": 1},
        "train": {
            "output_dir": str(folder), "steps": 2, "questions": 4, "learning_rate": 1e-2, "precision": "float32",
            "device": "cpu",
        },
    }  # fmt: skip
    return {key: base.get(key, {}) | sections.get(key, {}) for key in base | sections}


def read_lines(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def trainer_of(family, tmp_path, **sections):
    model, processor = vision_families.build(family)
    data = rows(tmp_path)
    return Trainer(model, [likes_a], data, data[:2], settings(tmp_path / "run", **sections), None, processor)


@pytest.mark.parametrize("family", vision_families.FAMILIES)
def test_a_run_samples_and_updates_exactly(family, tmp_path):
    # with a KL every tree is forwarded, uniform ones too
    trainer = trainer_of(family, tmp_path, algorithm={"pool": "question", "kl": 0.05})
    calls = []
    encoder(trainer.policy.model).register_forward_hook(lambda *_: calls.append(1))
    before = [p.clone() for p in encoder(trainer.policy.model).parameters()]
    trainer.train()
    # a step: three questions with images, sampled and updated; an evaluation before and after: two
    assert len(calls) == 2 * (3 + 3) + 2 * 2
    assert any(not torch.equal(p, b) for p, b in zip(encoder(trainer.policy.model).parameters(), before))
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "reward" in line]
    assert len(lines) == 2 and all(line["mismatch"] < 1e-5 for line in lines)
    assert all(math.isfinite(line["grad_norm"]) and line["sampled_image_placeholders"] >= 0 for line in lines)


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "llava"])
def test_a_frozen_encoder_is_called_once_a_batch(family, tmp_path):
    train = settings(tmp_path / "run")["train"] | {"epochs": 2, "updates": 2, "steps": 1}
    trainer = trainer_of(family, tmp_path, train=train, model={"lora": {"r": 4}, "freeze_vision": True},
                         algorithm={"pool": "question", "kl": 0.1})  # fmt: skip
    assert trainer.policy.inputs.frozen and "without gradient" in trainer.notes[0]
    adapted = {n for n, p in trainer.policy.model.named_parameters() if p.requires_grad}
    assert adapted and all("language_model" in name for name in adapted)
    calls = []
    encoder(trainer.policy.model.get_base_model()).register_forward_hook(lambda *_: calls.append(1))
    trainer.train()
    assert len(calls) == 3 + 3 + 2 * 2  # sampling, all of the update, two evaluations


def test_adapters_of_the_encoder_are_trained_unless_it_is_frozen(tmp_path):
    trainer = trainer_of("llava", tmp_path, model={"lora": {"r": 4}}, algorithm={"pool": "question", "kl": 0.1})
    assert not trainer.policy.inputs.frozen
    assert any("vision_tower" in n for n, p in trainer.policy.model.named_parameters() if p.requires_grad)
    trainer.train()


def test_images_are_stored_once_and_named_in_the_log(tmp_path):
    trainer_of("llava", tmp_path).train()
    trees = read_lines(tmp_path / "run" / "trees" / "000001.jsonl")
    named = {tree["question"]["id"]: tree["question"].get("images", []) for tree in trees}
    assert named["1"] == [str(tmp_path / "a.png")] and named["3"] == [] and len(named["2"]) == 2
    kept = sorted((tmp_path / "run" / "images").iterdir())
    assert sorted(named["2"]) == [f"images/{file.name}" for file in kept] and len(kept) == 2
    with pytest.raises(ConfigError, match="has images, which its log names and does not hold"):
        list(read_trees(tmp_path / "run" / "trees" / "000001.jsonl"))


def saved(family, folder):
    model, processor = vision_families.build(family)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "llava"])
def test_the_command_trains_on_files(family, tmp_path):
    saved(family, tmp_path / "model")
    data = [dict(row, image=Path(row["image"]).name) if "image" in row else row for row in rows(tmp_path)]
    data = [row for row in data if "images" not in row]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, data)))
    config = settings(tmp_path / "run", model={"path": str(tmp_path / "model")},
                      data={"train": str(tmp_path / "data.jsonl")})  # fmt: skip
    (tmp_path / "length.py").write_text(
        "def score(completion_ids, **_):\n    return [len(ids) for ids in completion_ids]\n"
    )
    (tmp_path / "config.yaml").write_text(json.dumps(config | {"rewards": [f"{tmp_path}/length.py:score"]}))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml"), "--dry-run"])
    assert result.exit_code == 0 and "3 of 3 rows usable" in result.output
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml")])
    assert result.exit_code == 0, result.output
    again = Trainer(str(tmp_path / "run" / "model"), ["math"], rows(tmp_path), config=settings(tmp_path / "second"))
    assert type(again.policy.processing_class).__name__ == type(vision_families.build(family)[1]).__name__


def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path):
    train = settings(tmp_path)["train"] | {"save_every": 1}
    whole = trainer_of("llava", tmp_path, train=train | {"output_dir": str(tmp_path / "whole")})
    whole.train()
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    resumed = trainer_of("llava", tmp_path, train=train | {"output_dir": str(tmp_path / "resumed")})
    resumed.train(tmp_path / "resumed" / "checkpoints" / "000001")
    for p, q in zip(whole.policy.model.parameters(), resumed.policy.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_images_for_a_model_of_text_are_refused(tmp_path):
    import tiny

    with pytest.raises(ConfigError, match=r"question '1' has images, and the model takes none(.|\n)*model\.path"):
        Trainer(
            tiny.llama(), [likes_a], rows(tmp_path), None, settings(tmp_path / "run"), None, tiny.tokenizer(tiny.CHAT)
        )


def test_images_for_an_engine_that_takes_none_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"engine: 'vllm' does not take the data's images; set engine: transformers"):
        trainer_of("llava", tmp_path, engine={"kind": "vllm"})
