"""From rewarded trees to changed weights: advantages, credit, packs, log-probs, objective, optimizer."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.objective import objective
from branchwise.algorithm.weights import count, credit
from branchwise.config import Config
from branchwise.policy.pack import Pack, build_packs, default_budget
from branchwise.policy.policy import Policy
from branchwise.train import not_finite
from branchwise.train.signals import Ended
from branchwise.train.world import World
from branchwise.tree import Tree


@dataclass(slots=True)
class Update:
    """What one batch did to the weights."""

    advantages: list[list]
    """Per tree, per node."""
    weights: list[np.ndarray]
    """Per tree, per node: what each of its sampled tokens weighed."""
    stats: dict[str, float]
    """Sums of the objective over all processes, its maxima under `max/`; packs without a finite loss are not in it."""
    grad_norms: list[float]
    """Before clipping, one an optimizer step that was taken."""
    idle: int = 0
    """Optimizer steps without any gradient: every pool was uniform. Weights stay as they are."""
    not_finite: int = 0
    """Optimizer steps left out because a loss or the gradient was NaN or infinite, on whichever process."""
    in_a_row: int = 0
    """How many of them came last, after every step that was taken."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Where this process saw them (`train.not_finite`)."""
    learning_rate: float = 0.0
    """Of the last optimizer step."""
    tokens: int = 0
    """Tree tokens forwarded with gradient, over all processes."""


def update(
    policy: Policy,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    trees: list[Tree],
    config: Config,
    world: World,
    ended: Callable[[], int] = lambda: 0,
) -> Update:
    """Go over the batch: `train.epochs` times through `train.updates` optimizer steps, questions kept whole.

    Args:
        ended: the number of the signal that ends the run, or 0; looked at after each pack of the first optimizer step.

    Raises:
        Ended: on all processes, if on any of them a signal ends the run; nothing has changed.
    """
    batch_advantages = advantages(trees, config, world.sum)
    result = Update(batch_advantages, [], {}, [])
    steps = [
        _packs([trees[i] for i in part], [batch_advantages[i] for i in part], policy, config, world, result)
        for part in np.array_split(np.arange(len(trees)), config.train.updates)
    ]
    _score(policy, steps, config, ended)
    sums: dict[str, float] = defaultdict(float)
    for epoch in range(config.train.epochs):
        for number, packs in enumerate(steps):
            first = epoch == number == 0
            faults = _backward(policy, packs, config, sums, ended if first else lambda: 0)
            if first and (signal := int(world.sum({"max/signal": ended()})["max/signal"])):
                optimizer.zero_grad(set_to_none=True)
                raise Ended(signal)
            result.learning_rate = float(scheduler.get_last_lr()[0])
            if _optimizer_step(policy, optimizer, packs, config, world, result, faults):
                _advance(scheduler)
            result.faults += [{"update": epoch * len(steps) + number + 1, "process": world.rank, **f} for f in faults]
    forwarded = config.train.epochs * sum(len(pack.ids_T) for packs in steps for pack in packs)
    result.stats = world.sum({**sums, "forwarded_tokens": forwarded})
    result.tokens = int(result.stats.pop("forwarded_tokens"))
    return result


def _advance(scheduler: LRScheduler) -> None:
    with warnings.catch_warnings():
        # the schedule goes on where an update had no gradient and the optimizer was not called
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        scheduler.step()


def _packs(
    trees: list[Tree], advantages: list[list], policy: Policy, config: Config, world: World, result: Update
) -> list[Pack]:
    """The packs of one optimizer step, weighed by counts over all processes."""
    credits = credit(trees, advantages, world.sum(count(trees, config)), config)
    result.weights += [c.weight for c in credits]
    return build_packs(
        trees,
        credits,
        budget=config.train.pack_tokens or default_budget(policy.device),
        device=policy.device,
        prune=config.algorithm.kl == 0 and config.algorithm.entropy == 0,
    )


@torch.no_grad()
def _score(policy: Policy, steps: list[list[Pack]], config: Config, ended: Callable[[], int]) -> None:
    """π_prox where the batch has several updates (with one it is π_θ itself), and π_ref where there is a KL."""
    for pack in (pack for packs in steps for pack in packs):
        if ended():
            return
        if config.train.updates * config.train.epochs > 1:
            with policy.encoding(pack):
                pack.scored.prox_S, _ = policy.logprobs(pack)
        if config.algorithm.kl > 0:
            pack.scored.ref_S = policy.reference_logprobs(pack)


def _backward(
    policy: Policy, packs: list[Pack], config: Config, sums: dict[str, float], ended: Callable[[], int]
) -> list[dict[str, Any]]:
    """Add up the gradient, and what there is to log; returns the packs whose loss is not finite."""
    faults = []
    for number, pack in enumerate(packs, 1):
        if ended():
            break
        with policy.encoding(pack):
            logp_S, entropy_S = policy.logprobs(pack, entropy=config.algorithm.entropy > 0)
            loss, stats = objective(logp_S, entropy_S, pack.scored, config.algorithm)
            if not torch.isfinite(loss):
                faults.append({"pack": number, "packs": len(packs), **not_finite.of_loss(pack, logp_S, loss)})
                continue
            loss.backward()
        for key, value in stats.items():
            sums[key] = max(sums[key], float(value)) if key.startswith("max/") else sums[key] + float(value)
    return faults


def _optimizer_step(
    policy: Policy,
    optimizer: Optimizer,
    packs: list[Pack],
    config: Config,
    world: World,
    result: Update,
    faults: list[dict[str, Any]],
) -> bool:
    """Change the weights, unless there is no gradient or it cannot be used. False: as if there had been no step."""
    everywhere = world.sum({"packs": len(packs), "faults": len(faults)})
    if everywhere["packs"] == 0:
        result.idle += 1
        return True
    parameters = policy.trainable_parameters()
    world.sum_gradients(parameters)
    norm_tensor = get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm, sound = float(norm_tensor), not everywhere["faults"]
    if sound and not np.isfinite(norm):
        named = [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
        faults.append(not_finite.of_gradient(named, norm))
    if taken := sound and bool(np.isfinite(norm)):
        clip_grads_with_norm_(parameters, config.train.max_grad_norm, norm_tensor)
        optimizer.step()
        result.grad_norms.append(norm)
    else:
        result.not_finite += 1
    result.in_a_row = 0 if taken else result.in_a_row + 1
    optimizer.zero_grad(set_to_none=True)
    return taken
