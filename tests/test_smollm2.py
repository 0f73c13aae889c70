"""A real pretrained model on other people's questions, three steps of each method."""

import json
import math

import pytest

from branchwise import Trainer

EXAMPLES = [
    {"question": "Ann has 3 apples and buys 4. How many has she?", "response": "<think>3 + 4 = 7</think>\\boxed{7}"},
    {"question": "A box holds 5 pens. How many do 2 hold?", "response": "<think>5 * 2 = 10</think>\\boxed{10}"},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "data", "shape"),
    [
        ("grpo", "gsm8k_train.jsonl", {"thoughts": 8}),
        ("grpo-ma", "gsm8k_train.jsonl", {"thoughts": 4, "answers": 2}),
        ("ta-grpo", "rephrasings_gsmplus.jsonl", {"rephrasings": 1, "thoughts": 4}),
        ("ta-grpo-ma", "rephrasings_gsmplus.jsonl", {"rephrasings": 1, "thoughts": 2, "answers": 2}),
    ],
)
def test_three_steps_of_each_method(smollm2, shared_data, tmp_path, capsys, preset, data, shape):
    config = {
        "preset": preset,
        "data": {"train": {"path": str(shared_data / data), "limit": 50}, "examples": EXAMPLES},
        "tree": shape,
        "sampling": {"temperature": 0.6, "max_thought_tokens": 40, "max_answer_tokens": 12},
        "train": {"steps": 3, "questions": 2, "learning_rate": 1e-5, "output_dir": str(tmp_path)},
    }
    summary = Trainer(smollm2, config=config).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert summary["missing_rewards"] == 0
    phrasings = 1 + shape.get("rephrasings", 0)
    for step, line in enumerate(lines, start=1):
        trees = [json.loads(tree) for tree in (tmp_path / "trees" / f"{step:06d}.jsonl").read_text().splitlines()]
        assert len(trees) == 2
        for tree in trees:
            nodes = tree["nodes"]
            assert sum(node["kind"] == "thought" for node in nodes) == phrasings * shape["thoughts"]
            for place, node in enumerate(nodes):
                if node["kind"] == "thought":
                    grown = sum(other["parent"] == place for other in nodes)
                    assert grown == (shape.get("answers", 1) if node["finish"] == "marker" else 0)
        leaves = [n for t in trees for n in t["nodes"] if "reward" in n]
        assert len(leaves) == line["leaves"] and all(leaf["reward"] is not None for leaf in leaves)
    told = capsys.readouterr().out
    assert ("every pool was uniform" in told) == any(line["idle_updates"] for line in lines)
