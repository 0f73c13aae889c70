"""A whole step, sampling to weights: 4 thoughts with 4 answers each (T4A4) against 16 thoughts with one (T16A1).

    python benchmarks/step.py [--json] [--turns 1]

SmolLM2-135M-Instruct in bfloat16, 8 questions of 200 tokens, thoughts of 192 and answers of 32 tokens, all at full
length: 128 leaves in either shape. The shapes take turns after a short step of each. `ratio` is the seconds of T4A4
over those of T16A1, medians. Tokens of a stage are those it computes: a prompt's, a thought's or an answer's once, and
for the update each tree token once. Scoring is π_prox and π_ref, which one update without KL does not need.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rollout import ROOT, close_at_limits
from transformers import get_scheduler

from branchwise.config import Config, load_config
from branchwise.policy.load import load_policy
from branchwise.rewards.run import RewardRunner
from branchwise.rollout import forking
from branchwise.rollout.collect import limbs
from branchwise.rollout.transformers import TransformersEngine
from branchwise.train.optimizer import make_optimizer
from branchwise.train.update import update
from branchwise.train.world import World
from branchwise.tree import Question, Tree, prompt_node

QUESTIONS, PROMPT, THOUGHT, ANSWER = 8, 200, 192, 32
SHAPES = {"T4A4": (4, 4), "T16A1": (16, 1)}
STAGES = ("prefill", "thoughts", "answers", "rewards", "scoring", "update", "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print an object instead of a table")
    parser.add_argument("--turns", type=int, default=1, help="steps of each shape that are timed")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="unpacked there if missing")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "recipes" / "quickstart"))
    import smollm2

    step = Step(smollm2.unpack(args.model))
    for shape in SHAPES:
        step.run(shape, shorter=16)
    turns = [{shape: step.run(shape) for shape in SHAPES} for _ in range(args.turns)]
    found = {shape: _median([turn[shape] for turn in turns]) for shape in SHAPES}
    result = {
        "ratio": round(found["T4A4"]["total"]["seconds"] / found["T16A1"]["total"]["seconds"], 3),
        "matrix_gflops": round(matrix_rate()),
        "shapes": found,
    }
    print(json.dumps(result, indent=2)) if args.json else Console().print(table(result))


class Step:
    """One model with its engine and optimizer."""

    def __init__(self, path: Path) -> None:
        close_at_limits()
        self.path = path
        config = self.config("T4A4")
        self.world = World(config.train)
        self.policy = load_policy(config)
        self.engine = TransformersEngine(
            self.policy.model, self.policy.tokenizer, dtype=torch.bfloat16, device="cpu", max_rows=256
        )
        self.optimizer = make_optimizer(self.policy.trainable_parameters(), config.train)
        self.scheduler = get_scheduler("constant", self.optimizer)
        self.clock: dict[str, float] = defaultdict(float)
        self._watch_engine()

    def config(self, shape: str) -> Config:
        thoughts, answers = SHAPES[shape]
        return load_config(
            {
                "model": {"path": str(self.path)},
                "tree": {"thoughts": thoughts, "answers": answers},
                "algorithm": {"segments": "split"},
                "sampling": {"max_thought_tokens": THOUGHT, "max_answer_tokens": ANSWER},
                "train": {"precision": "bfloat16", "device": "cpu", "questions": QUESTIONS},
            }
        )

    def run(self, shape: str, shorter: int = 1) -> dict[str, dict[str, float]]:
        """Seconds and tokens a second by stage."""
        config, self.clock = self.config(shape), defaultdict(float)
        sampling = config.sampling_plan()
        sampling = replace(
            sampling,
            max_thought_tokens=sampling.max_thought_tokens // shorter,
            max_answer_tokens=sampling.max_answer_tokens // shorter,
        )
        trees = seedlings()
        marks = [time.perf_counter()]
        self.engine.grow([limb for tree in trees for limb in limbs(tree, config)], sampling)
        marks.append(time.perf_counter())
        random = np.random.default_rng(0)
        RewardRunner([lambda completions, **_: random.random(len(completions)).tolist()], self.policy.tokenizer).score(
            trees
        )
        marks.append(time.perf_counter())
        update(self.policy, self.optimizer, self.scheduler, trees, config, self.world)
        marks.append(time.perf_counter())
        self.engine.sync(self.policy.model)
        marks.append(time.perf_counter())
        sampled, rewards, updated, weights = np.diff(marks)
        seconds = {
            "prefill": self.clock["prefill"],
            "thoughts": sampled - self.clock["prefill"] - self.clock["answers"],
            "answers": self.clock["answers"],
            "rewards": rewards,
            "scoring": 0.0,
            "update": updated,
            "weights": weights,
            "total": marks[-1] - marks[0],
        }
        lengths = {kind: sum(len(n.ids_T) for t in trees for n in t.nodes if n.kind == kind)
                   for kind in ("phrasing", "thought", "answer")}  # fmt: skip
        tokens = {"prefill": lengths["phrasing"], "thoughts": lengths["thought"], "answers": lengths["answer"],
                  "update": sum(lengths.values()), "total": sum(lengths.values())}  # fmt: skip
        return {
            stage: {"seconds": round(float(s), 3)}
            | ({"tokens_per_second": round(tokens[stage] / s, 1)} if stage in tokens else {})
            for stage, s in seconds.items()
        }

    def _watch_engine(self) -> None:
        """Time prompts apart, and what follows the first fork: here all thoughts end at once."""
        prefill, clock = forking.prefill, self

        def timed_prefill(*args: Any) -> Any:
            start = time.perf_counter()
            found = prefill(*args)
            clock.clock["prefill"] += time.perf_counter() - start
            return found

        def timed_run(growth: forking.Growth) -> None:
            run(growth)
            clock.clock["answers"] += time.perf_counter() - growth.forked_at  # type: ignore[attr-defined]

        def timed_fork(growth: forking.Growth) -> None:
            growth.forked_at = time.perf_counter()  # type: ignore[attr-defined]
            fork(growth)

        run, fork = forking.Growth.run, forking.Growth._fork
        forking.prefill = timed_prefill
        forking.Growth.run, forking.Growth._fork = timed_run, timed_fork  # type: ignore[method-assign]


def seedlings() -> list[Tree]:
    prompts = np.random.default_rng(1).integers(1000, 40000, (QUESTIONS, PROMPT))
    trees = []
    for b, ids in enumerate(prompts.tolist()):
        trees.append(Tree(Question(str(b), ("",)), draw=b, step=0))
        trees[-1].add(prompt_node(0, ids))
    return trees


def matrix_rate(size: int = 2048) -> float:
    """GFLOP/s of a product of two square bfloat16 matrices, the best of five."""
    a, b = torch.randn(2, size, size, dtype=torch.bfloat16)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) / 1e9


def _median(turns: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        stage: {key: round(median(turn[stage][key] for turn in turns), 3) for key in turns[0][stage]}
        for stage in turns[0]
    }


def table(result: dict[str, Any]) -> Table:
    drawn = Table("stage", *(f"{shape}: {what}" for shape in SHAPES for what in ("seconds", "tokens/s")),
                  title=f"T4A4 takes {result['ratio']} of T16A1's time; {result['matrix_gflops']} GFLOP/s")  # fmt: skip
    for stage in (*STAGES, "total"):
        found = [result["shapes"][shape][stage] for shape in SHAPES]
        drawn.add_row(stage, *(str(f.get(key, "")) for f in found for key in ("seconds", "tokens_per_second")))
    return drawn


if __name__ == "__main__":
    main()
