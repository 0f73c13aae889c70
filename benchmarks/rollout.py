"""Sampling: 8 questions, 4 thoughts each, 4 answers to each thought, by every engine and by TRL's way.

    python benchmarks/rollout.py [--json] [--contenders transformers trl vllm] [--cases full ragged]
                                 [--dtypes bfloat16 float32] [--vllm-python .venv-vllm/bin/python]

SmolLM2-135M-Instruct, prompts of 200 tokens, thoughts of 96 and answers of 32 tokens: all at full length (`full`), or
of long-tailed lengths from one seeded list, the same for all (`ragged`). TRL's way is one call of `generate` with 16
rows a question; it has no thoughts, so a row has the length of a thought and an answer to it. Each contender has a
process of its own, one after another, and a short run before the one that is timed. A leaf counts whole in
`leaf_tokens_per_second`; `generated_tokens_per_second` counts the tokens that were drawn. `peak_mb` (Linux only) is
the peak of the process's memory above what it held when the model was loaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
QUESTIONS, PROMPT, THOUGHTS, THOUGHT, ANSWERS, ANSWER = 8, 200, 4, 96, 4, 32
Run = Callable[[dict[str, np.ndarray]], int]
"""Samples with given lengths; returns the number of tokens drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of results instead of a table")
    parser.add_argument("--contenders", nargs="+", default=["transformers", "vllm", "trl"])
    parser.add_argument("--cases", nargs="+", default=["full", "ragged"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="unpacked there if missing")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python",
                        help="an interpreter that has vLLM; without it vLLM is left out")  # fmt: skip
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args.contenders[0], args.cases[0], args.dtypes[0], args.model)))
        return
    sys.path.insert(0, str(ROOT / "recipes" / "quickstart"))
    import smollm2

    smollm2.unpack(args.model)
    results = []
    for dtype in args.dtypes:
        for case in args.cases:
            for contender in args.contenders:
                if contender == "vllm" and not args.vllm_python.exists():
                    print(f"vllm is left out: there is no {args.vllm_python}", file=sys.stderr)
                    continue
                python = args.vllm_python if contender == "vllm" else sys.executable
                results.append(_in_turn(python, contender, case, dtype, args.model))
                print(results[-1], file=sys.stderr)
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(results))


def _in_turn(python: Path | str, contender: str, case: str, dtype: str, model: Path) -> dict[str, Any]:
    command = [python, __file__, "--alone", "--contenders", contender, "--cases", case, "--dtypes", dtype]
    done = subprocess.run([*map(str, command), "--model", str(model)], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(contender: str, case: str, dtype: str, model: Path) -> dict[str, Any]:
    run = {"transformers": transformers_engine, "vllm": vllm_engine, "trl": trl}[contender](model, dtype)
    run(lengths("full", shorter=16))
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, wanted = _status_mb("VmRSS"), lengths(case)
    start = time.perf_counter()
    drawn = run(wanted)
    seconds = time.perf_counter() - start
    leaf_tokens = int(ANSWERS * wanted["thoughts"].sum() + wanted["answers"].sum())
    return {
        "case": case,
        "dtype": dtype,
        "contender": contender,
        "generated_tokens_per_second": round(drawn / seconds, 1),
        "leaf_tokens_per_second": round(leaf_tokens / seconds, 1),
        "peak_mb": round(_status_mb("VmHWM") - before),
    }


def _status_mb(key: str) -> float:
    if sys.platform != "linux":
        return float("nan")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def lengths(case: str, shorter: int = 1) -> dict[str, np.ndarray]:
    """Tokens of each thought [B, K] and answer [B, K, M]; long-tailed: log-normal about a quarter of the limit."""
    random = np.random.default_rng(0)
    shape_BK = (QUESTIONS, THOUGHTS)
    if case == "full":
        return {
            "thoughts": np.full(shape_BK, THOUGHT // shorter),
            "answers": np.full((*shape_BK, ANSWERS), ANSWER // shorter),
        }
    tail = lambda size, limit: np.clip(random.lognormal(np.log(limit / 4), 0.8, size), 2, limit).astype(int)  # noqa: E731
    return {"thoughts": tail(shape_BK, THOUGHT), "answers": tail((*shape_BK, ANSWERS), ANSWER)}


def prompts() -> list[list[int]]:
    return np.random.default_rng(1).integers(1000, 40000, (QUESTIONS, PROMPT)).tolist()


# Contenders


def _load(model: Path, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    return loaded.eval(), AutoTokenizer.from_pretrained(model)


def transformers_engine(path: Path, dtype: str) -> Run:
    """Branchwise's in-process engine; nodes end at given lengths, a thought as if its marker stood there."""
    from branchwise.rollout import transformers as engine_module
    from branchwise.rollout.engine import Limb, Sampling
    from branchwise.rollout.transformers import TransformersEngine
    from branchwise.tree import Question, Tree, prompt_node

    close_at_limits()
    plan = engine_module._plan
    model, tokenizer = _load(path, dtype)
    engine = TransformersEngine(model, tokenizer, dtype=model.dtype, device="cpu", max_rows=256)

    def run(wanted: dict[str, np.ndarray]) -> int:
        def planned(limbs: Any, sampling: Sampling) -> Any:
            drafts = plan(limbs, sampling)
            for b, (_, thoughts) in enumerate(drafts):
                for k, thought in enumerate(thoughts):
                    thought.limit = int(wanted["thoughts"][b, k])
                    for m, answer in enumerate(thought.answers):
                        answer.limit = int(wanted["answers"][b, k, m])
            return drafts

        engine_module._plan = planned
        trees = []
        for b, ids in enumerate(prompts()):
            trees.append(Tree(Question(str(b), ("",)), draw=b, step=0))
            trees[-1].add(prompt_node(0, ids))
        sampling = Sampling(seed=0, max_thought_tokens=THOUGHT, max_answer_tokens=ANSWER)
        engine.grow([Limb(tree, 0, THOUGHTS, ANSWERS) for tree in trees], sampling)
        return sum(len(node.ids_T) for tree in trees for node in tree.nodes if node.parent >= 0)

    return run


def close_at_limits() -> None:
    """Henceforth the in-process engine ends nodes at their limits alone, thoughts as if the marker stood there."""
    import torch

    from branchwise.rollout import transformers as engine_module
    from branchwise.rollout.forking import Draft, Endings

    class AtLimit(Endings):
        @classmethod
        def of(cls, stop: Any, marker: Any, decoder: Any) -> Endings:
            return cls(stop, marker, torch.zeros(decoder.vocabulary, dtype=torch.bool))

        def finish(self, draft: Draft, ids_T: list[int]) -> Any:
            return "marker" if draft.kind == "thought" else "length"

    engine_module.Endings = AtLimit  # type: ignore[misc]


def trl(path: Path, dtype: str) -> Run:
    """One call of `generate`, 16 rows a question, as TRL's GRPOTrainer makes it without vLLM."""
    import torch
    from transformers import GenerationConfig, StoppingCriteriaList

    model, tokenizer = _load(path, dtype)
    per_question = THOUGHTS * ANSWERS

    def run(wanted: dict[str, np.ndarray]) -> int:
        ids_RT = torch.tensor(prompts()).repeat_interleave(per_question, 0)
        wanted_R = torch.from_numpy(wanted["thoughts"][..., None] + wanted["answers"]).flatten()
        longest = int(wanted_R.max())

        def at_length(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return ids.shape[1] - PROMPT >= wanted_R

        config = GenerationConfig(
            max_new_tokens=longest, min_new_tokens=1, do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
            eos_token_id=None, pad_token_id=tokenizer.pad_token_id or 0,
        )  # fmt: skip
        model.generation_config.eos_token_id = None
        with torch.no_grad():
            model.generate(
                input_ids=ids_RT, attention_mask=torch.ones_like(ids_RT), generation_config=config,
                stopping_criteria=StoppingCriteriaList([at_length]),
            )  # fmt: skip
        return int(wanted_R.sum())

    return run


def vllm_engine(path: Path, dtype: str) -> Run:
    """vLLM in two stages, prefixes cached; a request for each node where lengths differ."""
    import os

    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams

    llm = LLM(str(path), dtype=dtype, enforce_eager=True, max_model_len=512, enable_prefix_caching=True, seed=0,
              max_num_seqs=256, disable_log_stats=True)  # fmt: skip

    def ask(ids: list[list[int]], wanted: np.ndarray) -> list[list[int]]:
        params = [
            SamplingParams(n=1, max_tokens=int(n), ignore_eos=True, logprobs=0, detokenize=False)
            for n in wanted.flatten()
        ]
        found = llm.generate([{"prompt_token_ids": i} for i in ids], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in found]

    def run(wanted: dict[str, np.ndarray]) -> int:
        llm.reset_prefix_cache()
        roots = [ids for ids in prompts() for _ in range(THOUGHTS)]
        thoughts = ask(roots, wanted["thoughts"])
        stems = [root + thought for root, thought in zip(roots, thoughts) for _ in range(ANSWERS)]
        answers = ask(stems, wanted["answers"])
        return sum(map(len, thoughts)) + sum(map(len, answers))

    return run


def table(results: list[dict[str, Any]]) -> Table:
    drawn = Table(*results[0])
    for result in results:
        drawn.add_row(*map(str, result.values()))
    return drawn


if __name__ == "__main__":
    main()
