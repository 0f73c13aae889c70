"""What `branchwise doctor` says a run takes, beside what it takes.

Each case is a run of two steps, in a process of its own, on the CPU. `measured` is the peak of the process's resident
memory above what it held once everything was imported; `estimated` is the doctor's, made without weights. The model is
SmolLM2-135M-Instruct (`--model`, a folder or an id). Linux only. `--without-holes`: the allocator gives large blocks
back at once, so that no memory is lost between those that are kept, and the doctor's part for that is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from branchwise.config import Config, load_config
from branchwise.config_text import merge

SHARED: dict[str, Any] = {
    "tree": {"thoughts": 4, "answers": 1, "marker": None},
    "sampling": {"max_thought_tokens": 60, "max_answer_tokens": 4, "kv_memory_gb": 0.2},
    "data": {"max_prompt_tokens": 64},
    "train": {"steps": 2, "questions": 8, "pack_tokens": 1024, "device": "cpu", "precision": "bfloat16"},
}
FLOAT32 = {"train": {"precision": "float32"}}
CASES: dict[str, dict[str, Any]] = {
    "full, float32": FLOAT32,
    "full, bfloat16": {},
    "full, bfloat16, KL": {"algorithm": {"kl": 0.01}},
    "full, bfloat16, checkpointed": {"model": {"gradient_checkpointing": True}},
    "LoRA, float32": merge(FLOAT32, {"model": {"lora": {"r": 16}}}),
    "LoRA, bfloat16": {"model": {"lora": {"r": 16}}},
    "LoRA, bfloat16, packs of 2048": {"model": {"lora": {"r": 16}}, "train": {"pack_tokens": 2048, "questions": 16}},
}
PHASES = ("load", "engine", "sample", "update", "save")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2")
    parser.add_argument("--json", action="store_true", help="print a list of results instead of a table")
    parser.add_argument("--cases", type=int, nargs="+", choices=range(1, len(CASES) + 1), metavar="N",
                        help=f"which of {'; '.join(f'{i}: {name}' for i, name in enumerate(CASES, 1))}")  # fmt: skip
    parser.add_argument("--without-holes", action="store_true", help="what the heap loses is left out of both")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(json.loads(args.run))))
        return
    names = [list(CASES)[number - 1] for number in args.cases] if args.cases else list(CASES)
    results = []
    for name in names:
        results.append({"case": name, **compare(case(name, args.model), holes=not args.without_holes)})
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    print("| run | estimated, MB | measured, MB | off by |\n|---|---|---|---|")
    for r in results:
        print(f"| {r['case']} | {r['estimated']:,} | {r['measured']:,} | {r['off']:+.1%} |")


def case(name: str, model: str) -> dict[str, Any]:
    return merge(merge(SHARED, {"model": {"path": model}}), CASES[name])


def compare(values: dict[str, Any], holes: bool = True) -> dict[str, Any]:
    """Estimated and measured MB of one run, and the peak of each of its phases, with or without the heap's holes."""
    from branchwise.doctor.memory import HOLES, estimate

    phases = measure(values, {} if holes else {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)})
    estimated = estimate(load_config(values))
    if not holes:
        estimated = replace(estimated, parts=tuple(part for part in estimated.parts if part.source != HOLES))
    measured = max(phases.values())
    told = round(estimated.peak / 1e6)
    return {
        "estimated": told,
        "measured": measured,
        "off": round(told / measured - 1, 4),
        "phases": phases,
        "parts": {phase: round(size / 1e6) for phase, size in estimated.phases.items()},
    }


def measure(values: dict[str, Any], environment: dict[str, str]) -> dict[str, int]:
    """The peaks of a run's phases in a fresh process, in MB above what it held after its imports."""
    command = [sys.executable, __file__, "--run", json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run(values: dict[str, Any]) -> dict[str, int]:
    """Train, and note each phase's peak."""
    from branchwise.train import trainer as training

    peaks = dict.fromkeys(PHASES, 0)
    _forget_peak()
    before = _status_mb("VmRSS")

    def note(phase: str) -> None:
        peaks[phase] = max(peaks[phase], _status_mb("VmHWM") - before)
        _forget_peak()

    def noting(phase: str, function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            _forget_peak()
            result = function(*args, **kwargs)
            note(phase)
            return result

        return noted

    with tempfile.TemporaryDirectory() as folder:
        config = load_config(merge(values, {"train": {"output_dir": f"{folder}/run"}}))
        trainer = training.Trainer(reward_funcs=[by_turns], train_dataset=rows(config), config=config)
        note("load")
        trainer.engine.grow = noting("sample", trainer.engine.grow)
        note("engine")
        training.update = noting("update", training.update)
        _forget_peak()
        trainer.train()
        note("save")
    return peaks


def rows(config: Config) -> list[dict[str, Any]]:
    """Plain questions, about half as long as they may be."""
    return [{"prompt": f"Tell me at length about the number {i}." * 3} for i in range(config.train.questions)]


def by_turns(completions: list[str], **_: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_mb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(round(int(line.split()[1]) * 1024 / 1e6) for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main()
