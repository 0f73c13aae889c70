"""Updates left out because a loss or a gradient was NaN or infinite: where it went wrong, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from branchwise.policy.pack import Pack
from branchwise.tree import Tree

NAMED = 20
"""The most parameters named of a gradient."""


def of_loss(pack: Pack, logp_S: Tensor, loss: Tensor) -> dict[str, Any]:
    """What of a pack is not finite: counts of tokens by what it is that is not, and the first such token.

    Its `context` are the ids before it, from the prompt on.
    """
    scored = pack.scored
    parts = {
        "policy_logprob": logp_S.detach(),
        "proximal_logprob": scored.prox_S,
        "reference_logprob": scored.ref_S,
        "sampler_logprob": scored.sampler_S,
        "advantage": scored.advantage_S,
        "weight": scored.weight_S,
    }
    bad = {name: ~torch.isfinite(x_S) for name, x_S in parts.items() if x_S is not None}
    told: dict[str, Any] = {"loss": float(loss.detach()), "tokens": len(pack.target_S)}
    told["not_finite"] = {name: int(bad_S.sum()) for name, bad_S in bad.items() if bad_S.any()}
    anywhere_S = torch.stack(list(bad.values())).any(0)
    if anywhere_S.any():
        first = int(anywhere_S.nonzero()[0, 0])
        told["first"] = {"token": int(pack.target_S[first]), "context": _context(pack, int(pack.source_S[first]))}
    return told


def of_gradient(named: Sequence[tuple[str, nn.Parameter]], norm: float) -> dict[str, Any]:
    """The gradient's norm, and how many elements of which parameters' gradients are not finite."""
    found = {name: int((~torch.isfinite(p.grad)).sum()) for name, p in named if p.grad is not None}
    bad = [(name, count) for name, count in found.items() if count]
    return {"gradient_norm": norm, "not_finite": dict(bad[:NAMED]), "parameters": len(bad)}


def record(tree: Tree, advantages: Sequence[Any], weights: np.ndarray) -> dict[str, Any]:
    """A tree as the update saw it: exact ids, log-probs, advantages and weights, which the rollout log rounds."""
    nodes = [
        {
            "kind": node.kind,
            "parent": node.parent,
            "index": node.index,
            "ids": node.ids_T.tolist(),
            "logprobs": node.logprobs_T.tolist(),
            "reward": node.reward,
            "advantage": np.asarray(advantage).tolist(),
            "weight": float(weight),
        }
        for node, advantage, weight in zip(tree.nodes, advantages, weights)
    ]
    return {"question": tree.question.id, "draw": tree.draw, "step": tree.step, "nodes": nodes}


def _context(pack: Pack, last: int) -> list[int]:
    """The ids of a path up to a position of the row."""
    node = int(torch.searchsorted(pack.start_J, last, right=True)) - 1
    ids: list[int] = []
    end = last + 1
    while node >= 0:
        ids = pack.ids_T[int(pack.start_J[node]) : end].tolist() + ids
        node = int(pack.parent_J[node])
        if node >= 0:
            end = int(pack.start_J[node + 1])
    return ids
