"""Pictures of shapes: make the data and the model unless they are there, train, and compare held-out reward.

python recipes/shapes/run.py [grpo | grpo-ma | ta-grpo-ma] [key=value …]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
METHODS = ("grpo", "grpo-ma", "ta-grpo-ma")


def main(arguments: list[str]) -> None:
    from branchwise.cli import hush_libraries

    hush_libraries()
    import make_data
    import make_model

    from branchwise import Trainer, load_config

    method, *overrides = arguments if arguments and arguments[0] in METHODS else ["grpo-ma", *arguments]
    if not make_data.FOLDER.exists():
        print("drawing pictures …", flush=True)
        make_data.main()
    model = Path("models/shapes")
    if not (model / "config.json").exists():
        print("warming a model up …", flush=True)
        make_model.make(model)
    config = load_config(HERE / f"{method}.yaml", overrides)
    if not overrides:
        shutil.rmtree(config.train.output_dir, ignore_errors=True)  # repeated, it would pile models up
    summary = Trainer(config=config).train()
    for when in ("before", "after"):
        h = summary["held_out"][when]
        spread = f"95% interval {h['low']:.3f} to {h['high']:.3f}, n={h['n']}"
        print(f"held-out mean reward {when:>6}: {h['mean']:.3f}  ({spread})")
    print(f"training: {summary['steps']} steps, {summary['leaves']} leaves, {summary['training_seconds']:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
