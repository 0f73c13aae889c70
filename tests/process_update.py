"""Run under torchrun or alone: one update by plain gradient descent on fixed trees, split among the processes.

python process_update.py OUT.pt SETTING=VALUE …
"""

import sys

import tiny
import torch
from torch.optim.lr_scheduler import LambdaLR
from trees import thought, tree, unclosed

from branchwise.config import load_config
from branchwise.policy.load import load_policy
from branchwise.train.update import update
from branchwise.train.world import World


def fixed_trees():
    """Uneven ones: unclosed thoughts, a missing reward, a uniform pool; the last two on their own in the last share."""
    first = tree(
        [thought(1, 0, tokens=6), thought(0, None, tokens=9)], [unclosed(0.5, tokens=12), thought(1, 1, tokens=2)]
    )
    second = tree([thought(0, 0), thought(0, 0)], [thought(0, 0, tokens=7)])
    third = tree([thought(1, 0.25, answer_tokens=(5, 1)), thought(0, 1, tokens=4)], [thought(0, 0.5, tokens=11)])
    return [first, second, third]


def main(out, *overrides):
    config = load_config(
        {
            "model": {"path": "tiny"},
            "preset": "ta-grpo-ma",
            "train": {"precision": "float32", "device": "cpu", "questions": 3, "max_grad_norm": 1e9},
        },
        list(overrides),
    )
    policy = load_policy(config, model=tiny.llama(), processing_class=tiny.tokenizer())
    world = World(config.train)
    optimizer = torch.optim.SGD(policy.trainable_parameters(), lr=1.0)
    trees = fixed_trees()[world.rank :: world.size]
    result = update(policy, optimizer, LambdaLR(optimizer, lambda _: 1.0), trees, config, world)
    if world.is_main:
        saved = {"size": world.size, "weights": policy.model.state_dict(), "norms": result.grad_norms}
        torch.save(saved | {"stats": result.stats, "tokens": result.tokens}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
