"""How far a response's two halves pull the weights the same way: the coupling that GRPO-MA removes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.objective import objective
from branchwise.algorithm.weights import count, credit
from branchwise.config import Config
from branchwise.policy.pack import build_packs, default_budget
from branchwise.policy.policy import Policy
from branchwise.tree import Tree


def coupling(policy: Policy, trees: list[Tree], config: Config) -> float | None:
    """Cosine between the gradients of the thoughts' and of the answers' objective on these trees.

    Near 1, thoughts and answers are pushed as one; near 0, each learns of its own. Costs two backward passes and one
    copy of the gradient; the policy's gradients are left empty.

    Returns:
        None where either gradient is zero: every pool is uniform, or there are no answers.
    """
    thought = _gradient(policy, trees, config, ("thought", "response"))
    answer = _gradient(policy, trees, config, ("answer",))
    if thought is None or answer is None:
        return None
    dot = sum(float((a.double() * b.double()).sum()) for a, b in zip(thought, answer))
    norms = [sum(float((g.double() ** 2).sum()) for g in gradient) ** 0.5 for gradient in (thought, answer)]
    return dot / (norms[0] * norms[1]) if all(norms) else None


def run_coupling(run: Path, step: int | None = None) -> str:
    """The coupling on a logged step's trees, with the run's final model, or the checkpoint of that step, in words.

    Raises:
        ConfigError: no weights or no trees of that step are there, or the trees' log lacks ids.
    """
    from branchwise.config import ConfigError, load_config
    from branchwise.evaluate.settings import checkpoints_of
    from branchwise.policy.load import load_policy
    from branchwise.train.tree_log import read_trees

    saved = checkpoints_of(run)
    files = {int(file.stem): file for file in (run / "trees").glob("*.jsonl") if file.stem.isdigit()}
    step = max(files, default=0) if step is None else step
    if step not in files:
        raise ConfigError(f"--step: {run}/trees has no trees of step {step}")
    weights = saved.get(step, saved[max(saved)])
    config = load_config(run / "config.yaml", [f"model.path={json.dumps(str(weights))}", "model.lora=null"])
    try:
        trees = list(read_trees(files[step]))
    except KeyError as error:
        raise ConfigError(f"{files[step]}: its nodes have no {error}; an earlier version wrote them") from None
    value = coupling(load_policy(config), trees, config)
    if value is None:
        return f"coupling at step {step}: undefined: thoughts or answers have no gradient there; --step takes another"
    return f"coupling at step {step}: cosine {value:.3f} between thoughts' and answers' gradients ({weights.name})"


def _gradient(policy: Policy, trees: list[Tree], config: Config, kinds: tuple[str, ...]) -> list[Any] | None:
    """The gradient of the nodes of these kinds alone, a tensor a parameter; None where none has an advantage."""
    credits = credit(trees, advantages(trees, config), count(trees, config), config)
    for tree, one in zip(trees, credits):
        for place, node in enumerate(tree.nodes):
            if node.kind not in kinds:
                one.weight[place] = 0.0
    parameters = policy.trainable_parameters()
    for parameter in parameters:
        parameter.grad = None
    packs = build_packs(
        trees,
        credits,
        budget=config.train.pack_tokens or default_budget(policy.device),
        device=policy.device,
        prune=True,
    )
    settings = config.algorithm.model_copy(update={"kl": 0.0, "entropy": 0.0})
    for pack in packs:
        logp_S, entropy_S = policy.logprobs(pack)
        objective(logp_S, entropy_S, pack.scored, settings)[0].backward()
    found = None
    if packs:
        found = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found
