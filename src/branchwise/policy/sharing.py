"""Which way of sharing prefixes is exact for a model, found by trying: most that are not fail silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from branchwise.policy.attention import WAYS, forwarding
from branchwise.policy.pack import Row

ONLY_ON = {"flex": "cuda", "blocks": "cpu"}
"""FlexAttention has no backward on a CPU; the operator of `blocks` is the CPU's."""
ROWS = 16
"""Root-to-leaf paths forwarded at once where nothing is shared."""
TOLERANCE = {"states": 3e-5, "gradients": 1e-3}
"""The most that a way may differ from rows, relative to the norm: some twenty times what rounding does in 30 layers."""
PROBE_PARENTS = (-1, 0, 1, 2, 2, 1, 5, 0, 7, -1, 9)
PROBE_LENGTHS = (9, 4, 7, 2, 5, 3, 1, 2, 6, 5, 3)
"""A small ragged forest: a beginning that two prompts share, thoughts and answers, a prompt of its own."""
PROBE_TILE, PROBE_WINDOW = 8, 3
"""Small enough that a probe meets every kind of block, and that sliding windows bind."""

Hidden = Callable[[nn.Module, Row], Tensor]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a model forwards a pack."""

    way: str
    """One of `attention.WAYS`, or `rows`: each root-to-leaf path on its own."""
    reason: str
    """Why the ways before it were passed over; empty for the first."""

    def hidden(self, backbone: nn.Module, row: Row) -> Tensor:
        """Last hidden states [T, H] of a row's tokens, each on its own path."""
        return rows_hidden(backbone, row) if self.way == "rows" else shared_hidden(backbone, row)


def backbone_of(model: Any) -> nn.Module:
    """The part of a causal language model that ends in hidden states."""
    decoder = model.get_decoder()
    return model.model if decoder is model else decoder


def shared_hidden(backbone: nn.Module, row: Row, **layout: int) -> Tensor:
    """Each token forwarded once, through an attention of `attention.WAYS`. [T, H]"""
    ids = row.ids_T[None]
    with forwarding(row, **layout):
        # without a mask of its own, transformers would take the falling positions for packed sequences
        out = backbone(ids, attention_mask=torch.ones_like(ids), position_ids=row.position_T[None], use_cache=False)
    return out.last_hidden_state[0]


def rows_hidden(backbone: nn.Module, row: Row) -> Tensor:
    """Each root-to-leaf path forwarded as a row; a shared token's state is taken from the first that has it. [T, H]"""
    device, paths = row.ids_T.device, sorted(_paths(row), key=len)
    parts, found_T = [], np.full(len(row.ids_T), -1)
    offset = 0
    for group in (paths[i : i + ROWS] for i in range(0, len(paths), ROWS)):
        length = len(group[-1])
        place = np.zeros((len(group), length), np.int64)
        mask = np.zeros((len(group), length), np.int64)
        for i, path in enumerate(group):
            place[i, : len(path)], mask[i, : len(path)] = path, 1
            new = found_T[path] < 0
            found_T[path[new]] = offset + i * length + np.flatnonzero(new)
        offset += place.size
        ids = row.ids_T[torch.as_tensor(place, device=device)]
        out = backbone(ids, attention_mask=torch.as_tensor(mask, device=device), use_cache=False)
        parts.append(out.last_hidden_state.flatten(0, 1))
    return torch.cat(parts)[torch.as_tensor(found_T, device=device)]


def _paths(row: Row) -> list[np.ndarray]:
    """For each leaf, the positions in the row of the tokens from its root to it."""
    start_J, parent_J = row.start_J.cpu().numpy(), row.parent_J.cpu().numpy()
    end_J = np.append(start_J[1:], len(row.ids_T))
    path_J: list[np.ndarray] = []
    for start, end, parent in zip(start_J, end_J, parent_J):
        own = np.arange(start, end)
        path_J.append(own if parent < 0 else np.concatenate([path_J[parent], own]))
    return [path_J[j] for j in np.setdiff1d(np.arange(len(start_J)), parent_J)]


def choose_sharing(model: Any) -> Sharing:
    """Set the model's attention to the first way that gives the hidden states and gradients of rows on a small forest.

    Args:
        model: a transformers causal language model, with adapters or gradient checkpointing as it will be trained.
    """
    row = _probe(model)
    device, original = row.ids_T.device.type, model.config._attn_implementation
    passed_over = []
    with _short_windows(model), torch.autocast(device, enabled=False):
        wanted = _evidence(model, row, rows_hidden)
        for way in (way for way in WAYS if ONLY_ON.get(way, device) == device):
            try:
                model.set_attn_implementation(f"branchwise_{way}")
                given = _evidence(model, row, partial(shared_hidden, tile=PROBE_TILE))
            except Exception as error:  # whatever a model raises here, rows remain
                passed_over.append(f"{way}: {type(error).__name__}: {error}".splitlines()[0])
                continue
            differences = {name: float((given[name] - w).norm() / w.norm()) for name, w in wanted.items()}
            wrong = [f"{name} differ by {d:.1g}" for name, d in differences.items() if not d < TOLERANCE[name]]
            if not wrong:
                return Sharing(way, "; ".join(passed_over))
            passed_over.append(f"{way}: {', '.join(wrong)} from rows'")
    model.set_attn_implementation(original)
    return Sharing("rows", "; ".join(passed_over))


def _probe(model: Any) -> Row:
    """The probe forest; its tokens have different ids, so that gradients tell them apart."""
    length_J, parent_J = np.array(PROBE_LENGTHS), np.array(PROBE_PARENTS)
    depth_J = np.zeros_like(length_J)
    for j, parent in enumerate(parent_J):
        depth_J[j] = depth_J[parent] + length_J[parent] if parent >= 0 else 0
    start_J = np.cumsum(length_J) - length_J
    place_T = np.arange(length_J.sum())
    position_T = place_T + np.repeat(depth_J - start_J, length_J)
    ids_T = place_T % model.get_input_embeddings().weight.shape[0]
    return Row(*(torch.as_tensor(x, device=model.device) for x in (ids_T, position_T, start_J, parent_J)))


def _evidence(model: Any, row: Row, hidden: Hidden) -> dict[str, Tensor]:
    """Hidden states [T, H], and the gradients of a random projection of them to the input embedding of each id.

    Weights in less than float32 are widened as they are used, for rounding would hide faults; there the states alone.
    """
    if model.dtype.itemsize < 4:
        with torch.no_grad(), Widened():
            return {"states": hidden(backbone_of(model), row)}
    shifts: list[Tensor] = []

    def shift(module: nn.Module, args: tuple[Tensor], embedded: Tensor) -> Tensor:
        if not shifts:
            shifts.append(embedded.new_zeros(len(row.ids_T), embedded.shape[-1]).requires_grad_())
        return embedded + shifts[0][args[0]]

    handle = model.get_input_embeddings().register_forward_hook(shift)
    try:
        with torch.enable_grad():
            states = hidden(backbone_of(model), row)
            projection = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(states)
            (gradients,) = torch.autograd.grad((states * projection).sum(), shifts)
    finally:
        handle.remove()
    return {"states": states.detach(), "gradients": gradients}


class Widened(TorchFunctionMode):
    """Computes in float32 with weights of 16 or 4 bits, without a copy of the model."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map(_wide, args), **tree_map(_wide, kwargs or {}))


def _wide(value: Any) -> Any:
    narrow = (torch.bfloat16, torch.float16)
    if isinstance(value, torch.dtype):
        return torch.float32 if value in narrow else value
    return value.float() if isinstance(value, Tensor) and value.dtype in narrow else value


@contextmanager
def _short_windows(model: nn.Module) -> Iterator[None]:
    """Sliding windows and attention chunks shorter than the probe; transformers reads them at each forward."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    found = [
        (config, name, value)
        for config in configs
        for name in ("sliding_window", "attention_chunk_size")
        if isinstance(value := getattr(config, name, None), int)
    ]
    for config, name, _ in found:
        setattr(config, name, PROBE_WINDOW)
    try:
        yield
    finally:
        for config, name, value in found:
            setattr(config, name, value)
