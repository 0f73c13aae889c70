"""From rewarded trees to changed weights: advantages, credit, packs, log-probs, objective, optimizer."""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.objective import objective
from branchwise.algorithm.weights import count, credit
from branchwise.config import Config
from branchwise.policy.pack import Pack, build_packs, default_budget
from branchwise.policy.policy import Policy
from branchwise.train.world import World
from branchwise.tree import Tree


@dataclass(slots=True)
class Update:
    """What one batch did to the weights."""

    advantages: list[list]
    """Per tree, per node."""
    stats: dict[str, float]
    """Sums of the objective over all processes, its maxima under `max/`."""
    grad_norms: list[float]
    """Before clipping, one an optimizer step that was taken."""
    idle: int = 0
    """Optimizer steps without any gradient: every pool was uniform. Weights stay as they are."""
    not_finite: int = 0
    """Optimizer steps left out because their gradient was NaN or infinite."""
    learning_rate: float = 0.0
    """Of the last optimizer step."""
    tokens: int = 0
    """Tree tokens forwarded with gradient, over all processes."""


def update(
    policy: Policy, optimizer: Optimizer, scheduler: LRScheduler, trees: list[Tree], config: Config, world: World
) -> Update:
    """Go over the batch: `train.epochs` times through `train.updates` optimizer steps, questions kept whole."""
    batch_advantages = advantages(trees, config, world.sum)
    steps = [
        _packs([trees[i] for i in part], [batch_advantages[i] for i in part], policy, config, world)
        for part in np.array_split(np.arange(len(trees)), config.train.updates)
    ]
    _score(policy, steps, config)
    result = Update(batch_advantages, {}, [])
    sums: dict[str, float] = defaultdict(float)
    for _ in range(config.train.epochs):
        for packs in steps:
            _backward(policy, packs, config, sums)
            _optimizer_step(policy, optimizer, packs, config, world, result)
            result.learning_rate = float(scheduler.get_last_lr()[0])
            _advance(scheduler)
    forwarded = config.train.epochs * sum(len(pack.ids_T) for packs in steps for pack in packs)
    result.stats = world.sum({**sums, "forwarded_tokens": forwarded})
    result.tokens = int(result.stats.pop("forwarded_tokens"))
    return result


def _advance(scheduler: LRScheduler) -> None:
    with warnings.catch_warnings():
        # the schedule goes on where an update had no gradient and the optimizer was not called
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        scheduler.step()


def _packs(trees: list[Tree], advantages: list[list], policy: Policy, config: Config, world: World) -> list[Pack]:
    """The packs of one optimizer step, weighed by counts over all processes."""
    counts = world.sum(count(trees, config))
    return build_packs(
        trees,
        credit(trees, advantages, counts, config),
        budget=config.train.pack_tokens or default_budget(policy.device),
        device=policy.device,
        prune=config.algorithm.kl == 0 and config.algorithm.entropy == 0,
    )


@torch.no_grad()
def _score(policy: Policy, steps: list[list[Pack]], config: Config) -> None:
    """π_prox where the batch has several updates (with one it is π_θ itself), and π_ref where there is a KL."""
    for pack in (pack for packs in steps for pack in packs):
        if config.train.updates * config.train.epochs > 1:
            with policy.encoding(pack):
                pack.scored.prox_S, _ = policy.logprobs(pack)
        if config.algorithm.kl > 0:
            pack.scored.ref_S = policy.reference_logprobs(pack)


def _backward(policy: Policy, packs: list[Pack], config: Config, sums: dict[str, float]) -> None:
    for pack in packs:
        with policy.encoding(pack):
            logp_S, entropy_S = policy.logprobs(pack, entropy=config.algorithm.entropy > 0)
            loss, stats = objective(logp_S, entropy_S, pack.scored, config.algorithm)
            loss.backward()
        for key, value in stats.items():
            sums[key] = max(sums[key], float(value)) if key.startswith("max/") else sums[key] + float(value)


def _optimizer_step(
    policy: Policy, optimizer: Optimizer, packs: list[Pack], config: Config, world: World, result: Update
) -> None:
    if world.sum({"packs": len(packs)})["packs"] == 0:
        result.idle += 1
        return
    parameters = list(policy.trainable_parameters())
    world.sum_gradients(parameters)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.train.max_grad_norm))
    if np.isfinite(norm):
        optimizer.step()
        result.grad_norms.append(norm)
    else:
        result.not_finite += 1
    optimizer.zero_grad(set_to_none=True)
