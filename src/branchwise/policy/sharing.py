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

from branchwise.policy.attention import WAYS, Layout, forwarding
from branchwise.policy.pack import Row

ONLY_ON = {"flex": "cuda", "blocks": "cpu"}
"""FlexAttention has no backward on a CPU; the operator of `blocks` is the CPU's."""
MASKED = 2048
"""Tokens forwarded at once under a dense mask: it is as large as their square, and so may attention be."""
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
        if self.way == "rows":
            return rows_hidden(backbone, row)
        if self.way in ("dense", "eager"):
            return parts_hidden(backbone, row, MASKED)
        return shared_hidden(backbone, row)


def backbone_of(model: Any) -> nn.Module:
    """The part of a causal language model that ends in hidden states."""
    decoder = model.get_decoder()
    return model.model if decoder is model else decoder


def shared_hidden(backbone: nn.Module, row: Row, **layout: int) -> Tensor:
    """Each token forwarded once, through an attention of `attention.WAYS`. [T, H]"""
    place = torch.arange(len(row.ids_T), device=row.ids_T.device)[None]
    inputs = {"position_ids": row.position_T[None]} | row.feed(place)
    with forwarding(row, **layout):
        # without a mask of its own, transformers would take the falling positions for packed sequences
        out = backbone(**inputs, attention_mask=torch.ones_like(place), use_cache=False)
    return out.last_hidden_state[0]


def parts_hidden(backbone: nn.Module, row: Row, limit: int) -> Tensor:
    """As `shared_hidden`, subtrees of at most `limit` tokens at a time, each after its own path. [T, H]"""
    layout = Layout(row)
    places, states = [], []
    for nodes in _parts(layout, limit):
        place, part = _part(row, layout, nodes)
        places.append(place)
        states.append(shared_hidden(backbone, part))
    return _first(places, states)


def _parts(layout: Layout, limit: int) -> Iterator[list[int]]:
    """Nodes in groups, depth-first, each with all its ancestors; a group exceeds the limit only by its common path."""
    children: dict[int, list[int]] = {}
    for j, parent in enumerate(layout.parent_J.tolist()):
        children.setdefault(parent, []).append(j)

    def groups(siblings: list[int], above: list[int]) -> Iterator[list[int]]:
        nodes: list[int] = []
        room = 0
        for j in siblings:
            size = int(layout.tail_J[j] - layout.start_J[j])
            if size > limit and j in children:
                yield from groups(children[j], [*above, j])
                continue
            if size > room:
                if nodes:
                    yield above + nodes
                nodes, room = [], limit
            nodes += range(j, int(np.searchsorted(layout.start_J, layout.tail_J[j])))
            room -= size
        if nodes:
            yield above + nodes

    return groups(children[-1], [])


def _part(row: Row, layout: Layout, nodes: list[int]) -> tuple[np.ndarray, Row]:
    """Some nodes of a row as a row of their own, and where in the whole row each of its tokens stands."""
    length_N = layout.end_J[nodes] - layout.start_J[nodes]
    place = np.concatenate([np.arange(layout.start_J[j], layout.end_J[j]) for j in nodes])
    parent_N = layout.parent_J[nodes]
    parent_N = np.where(parent_N < 0, -1, np.searchsorted(nodes, parent_N))
    taken, start, parent = (
        torch.as_tensor(x, device=row.ids_T.device) for x in (place, np.cumsum(length_N) - length_N, parent_N)
    )
    return place, row.part(taken, start, parent)


def rows_hidden(backbone: nn.Module, row: Row) -> Tensor:
    """Each root-to-leaf path forwarded as a row, padded on the right, and nothing shared. [T, H]"""
    paths = sorted(_paths(Layout(row)), key=len)
    places, states = [], []
    for group in (paths[i : i + ROWS] for i in range(0, len(paths), ROWS)):
        place = np.full((len(group), len(group[-1])), -1)
        for i, path in enumerate(group):
            place[i, : len(path)] = path
        taken = torch.as_tensor(place, device=row.ids_T.device)
        out = backbone(**row.feed(taken.clamp(min=0)), attention_mask=(taken >= 0).long(), use_cache=False)
        places.append(place.ravel())
        states.append(out.last_hidden_state.flatten(0, 1))
    return _first(places, states)


def _paths(layout: Layout) -> list[np.ndarray]:
    """For each leaf, where in the row the tokens from its root to it stand."""
    path_J: list[np.ndarray] = []
    for start, end, parent in zip(layout.start_J, layout.end_J, layout.parent_J):
        own = np.arange(start, end)
        path_J.append(own if parent < 0 else np.concatenate([path_J[parent], own]))
    return [path for path, end, tail in zip(path_J, layout.end_J, layout.tail_J) if end == tail]


def _first(places: list[np.ndarray], states: list[Tensor]) -> Tensor:
    """For each token of a row, the first state of all that were computed for its place; place -1 is padding."""
    tokens, first = np.unique(np.concatenate(places), return_index=True)
    return torch.cat(states).index_select(0, torch.as_tensor(first[tokens >= 0], device=states[0].device))


def choose_sharing(model: Any) -> Sharing:
    """Set the model's attention to the first way that gives the hidden states and gradients of rows on a small forest.

    Args:
        model: a transformers causal language model, with adapters or gradient checkpointing as it will be trained.
    """
    row = _probe(model)
    backbone: Any = backbone_of(model)
    device, original = row.ids_T.device.type, backbone.config._attn_implementation
    passed_over = []
    with _short_windows(model), torch.autocast(device, enabled=False):
        wanted = _evidence(model, row, rows_hidden)
        for way in (way for way in WAYS if ONLY_ON.get(way, device) == device):
            try:
                backbone.set_attn_implementation(f"branchwise_{way}")
                given = _evidence(model, row, partial(shared_hidden, tile=PROBE_TILE))
            except Exception as error:  # whatever a model raises here, rows remain
                passed_over.append(f"{way}: {type(error).__name__}: {error}".splitlines()[0])
                continue
            differences = {name: float((given[name] - w).norm() / w.norm()) for name, w in wanted.items()}
            wrong = [f"{name} differ by {d:.1g}" for name, d in differences.items() if not d < TOLERANCE[name]]
            if not wrong:
                return Sharing(way, "; ".join(passed_over))
            passed_over.append(f"{way}: {', '.join(wrong)} from rows'")
    backbone.set_attn_implementation(original)
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
    if model.dtype.itemsize < 4 or getattr(model, "is_quantized", False):
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
