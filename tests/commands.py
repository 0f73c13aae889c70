"""A tiny training as files that the command line takes."""

import json
from pathlib import Path

import tiny
import yaml

LETTERS = Path(__file__).with_name("letters.py")
ROWS = [
    {"question": f"{a}+{b}=", "answer": str(a + b), "rephrasings": [f"{b}+{a}=", f"add {a}, {b}"]}
    for a in range(4)
    for b in range(4)
]


def write(folder, output=None, reward="likes_a", **sections):
    """A config with its model and data; returns its file."""
    if not (folder / "model").exists():
        tiny.save(folder / "model")
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    train = {
        "output_dir": str(output or folder / "run"), "steps": 6, "questions": 2, "learning_rate": 1e-2,
        "precision": "float32", "device": "cpu", "save_every": 1,
    }  # fmt: skip
    config = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "rows.jsonl")},
        "rewards": [f"{LETTERS}:{reward}"],
        "tree": {"thoughts": 2, "answers": 2, "rephrasings": 1, "uniform": "resample"},
        "algorithm": {"pool": "question"},
        "sampling": {"max_thought_tokens": 6, "max_answer_tokens": 3, "kv_memory_gb": 1},
        "train": train | sections.pop("train", {}),
    }  # fmt: skip
    for key, values in sections.items():
        config[key] = config.get(key, {}) | values
    file = folder / f"{Path(config['train']['output_dir']).name}.yaml"
    file.write_text(yaml.safe_dump(config))
    return file
