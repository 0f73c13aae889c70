"""Attention over a pack: each token sees its path alone, and each key and value stands in memory once.

Nodes stand depth-first, so a node's descendants are contiguous, and query q sees key k where k <= q < tail[k], the end
of the last descendant of k's node. `blocks` cuts that region into flash-attention calls, in which next to no masked
score is computed: each node with itself, and all descendants of a node with it. Outputs o of log-sum-exp l merge
exactly: l = logaddexp(l1, l2), o = lerp(o1, o2, sigmoid(l2 - l1)). Given the merged o and l, the flash backward of a
block is that block's share of the gradient, so the shares add up (arXiv 2205.14135, algorithm 4).

The ways are registered with transformers' attention interface. While a pack is forwarded (`forwarding`), a model that
asks for its mask is given the pack's, which then travels with the model's own arguments to every layer, and through the
recomputation of gradient checkpointing. At all other times a way is ordinary attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

from branchwise.policy.pack import Row

MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""transformers' form of a mask: (batch, head, query position, key position) -> bool, whether it is seen."""

WAYS = ("flex", "blocks", "dense", "eager")
"""In order of preference; registered with transformers under these names after `branchwise_`."""
PLAIN = "branchwise_plain"
"""`sdpa`, but quicker while decoding; it knows no packs."""
UNSEEN = -1e30
"""Added to scores of unseen keys. Finite: where a query sees none of a block, its log-sum-exp is -1e30 and weighs 0."""
TILE = 64
"""Small neighbouring subtrees are attended to in one masked call of at most so many tokens."""


class Layout:
    """Where a pack's nodes lie in its row."""

    def __init__(self, row: Row, tile: int = TILE):
        self.tile = tile
        self.position_T = row.position_T
        self.start_J, self.parent_J = row.start_J.cpu().numpy(), row.parent_J.cpu().numpy()
        self.whole_J = row.whole_J()
        self.end_J = np.append(self.start_J[1:], len(row.ids_T))
        self.tail_J = self.end_J.copy()
        for j in range(len(self.parent_J) - 1, 0, -1):
            if (parent := self.parent_J[j]) >= 0:
                self.tail_J[parent] = max(self.tail_J[parent], self.tail_J[j])

    @cached_property
    def tail_T(self) -> Tensor:
        """int64 [T]: the end of the last descendant of each token's node."""
        return torch.as_tensor(np.repeat(self.tail_J, self.end_J - self.start_J), device=self.position_T.device)

    @cached_property
    def first_T(self) -> Tensor:
        """int64 [T]: the first token that sees each: itself, or of a node seen in both directions the node's first."""
        length_J = self.end_J - self.start_J
        first_T = np.where(
            np.repeat(self.whole_J, length_J), np.repeat(self.start_J, length_J), np.arange(length_J.sum())
        )
        return torch.as_tensor(first_T, device=self.position_T.device)

    @cached_property
    def blocks(self) -> list[Block]:
        """Blocks in which each pair of a query and a key it sees stands once; own keys first, ancestors' after them."""
        own: list[Block] = []
        ancestors: list[Block] = []
        j, nodes = 0, len(self.start_J)
        while j < nodes:
            start, end, tail = int(self.start_J[j]), int(self.end_J[j]), int(self.tail_J[j])
            j += 1
            if tail - start > self.tile:
                own.append(Block(slice(start, end), slice(start, end), causal=not self.whole_J[j - 1]))
                if tail > end:
                    ancestors.append(Block(slice(end, tail), slice(start, end)))
                continue
            while (j := int(np.searchsorted(self.start_J, tail))) < nodes and self.tail_J[j] - start <= self.tile:
                tail = int(self.tail_J[j])
            tile = slice(start, tail)
            own.append(Block(tile, tile, mask=_additive(self.seen(tile, tile))))
        return own + ancestors

    def seen(self, query: slice, key: slice, mask_function: MaskFunction = causal_mask_function) -> Tensor:
        """bool [query, key]: the key lies on the query's path, and the model's mask shows it at that distance."""
        place_T = torch.arange(len(self.position_T), device=self.position_T.device)
        q, k = place_T[query, None], place_T[None, key]
        zero = place_T.new_zeros(1, 1)
        shown = mask_function(zero, zero, self.position_T[query, None], self.position_T[None, key])
        return (self.first_T[None, key] <= q) & (q < self.tail_T[None, key]) & (shown | (k > q))


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that attend to keys: all to all, causally, or with a float mask [1, 1, query, key] on the scores."""

    query: slice
    key: slice
    causal: bool = False
    mask: Tensor | None = None


def _additive(seen: Tensor, unseen: float = UNSEEN, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, unseen)[None, None]


# Masks of a pack, by way


def _blocks_mask(layout: Layout, mask_function: MaskFunction, dtype: torch.dtype) -> list[Block]:
    """The layout's blocks, less what the model's own mask (a sliding window) hides."""
    if mask_function is causal_mask_function:
        return layout.blocks
    blocks = []
    for block in layout.blocks:
        if _shows_all(mask_function, layout.position_T[block.query], layout.position_T[block.key]):
            blocks.append(block)
        elif (seen := layout.seen(block.query, block.key, mask_function)).any():
            blocks.append(Block(block.query, block.key, mask=_additive(seen)))
    return blocks


def _shows_all(mask_function: MaskFunction, query_T: Tensor, key_T: Tensor) -> bool:
    """Whether a query at any of these positions would see all keys at or before it."""
    q, k = (torch.arange(int(x.min()), int(x.max()) + 1, device=x.device) for x in (query_T, key_T))
    zero = q.new_zeros(1, 1)
    return torch.equal(mask_function(zero, zero, q[:, None], k[None]), k[None] <= q[:, None])


def _dense_mask(layout: Layout, mask_function: MaskFunction, dtype: torch.dtype) -> Tensor:
    """float [1, 1, T, T]. Boolean masks are silently misread by eager attention."""
    everything = slice(None)
    return _additive(layout.seen(everything, everything, mask_function), torch.finfo(dtype).min, dtype)


def _flex_mask(layout: Layout, mask_function: MaskFunction, dtype: torch.dtype) -> BlockMask:
    """Of a length rounded up to whole blocks of 128; what is added sees itself alone."""
    device = layout.position_T.device
    length = len(layout.position_T)
    padded = -(-length // 128) * 128
    added_T = torch.arange(length, padded, device=device)
    first_T, tail_T = torch.cat([layout.first_T, added_T]), torch.cat([layout.tail_T, added_T + 1])
    position_T = torch.nn.functional.pad(layout.position_T, (0, padded - length))

    def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        shown = mask_function(batch, head, position_T[q], position_T[k])
        return (first_T[k] <= q) & (q < tail_T[k]) & (shown | (k > q))

    return create_block_mask(seen, B=None, H=None, Q_LEN=padded, KV_LEN=padded, device=device)


# Attention, by way


def _plain_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Ordinary attention; while decoding, the queries that share a head's keys stand in one block.

    On a CPU in bfloat16 that is four times as quick as a call for each of them.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if query.shape[2] > 1 or groups == 1 or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is not None and attention_mask.shape[1] > 1:
        attention_mask = attention_mask.unflatten(1, (-1, groups)).flatten(2, 3)
    packed = query.unflatten(1, (-1, groups)).flatten(2, 3)
    out = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return out.reshape(len(query), 1, query.shape[1], -1), None


def _blocks_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    if not isinstance(attention_mask, list):
        return _plain_attention(module, query, key, value, attention_mask, **kwargs)
    _refuse_extras(kwargs)
    return _MergedBlocks.apply(*_one_dtype(query, key, value), kwargs.get("scaling"), attention_mask), None


def _flex_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    if not isinstance(attention_mask, BlockMask):
        return _plain_attention(module, query, key, value, attention_mask, **kwargs)
    _refuse_extras(kwargs)
    length, padded = query.shape[2], attention_mask.seq_lengths[0]
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, padded - length)) for x in _one_dtype(query, key, value))
    out = _compiled_flex()(q, k, v, block_mask=attention_mask, scale=kwargs.get("scaling"), enable_gqa=True)
    return out[:, :, :length].transpose(1, 2).contiguous(), None


def _eager_attention(module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The model's own, with its soft-capping or sinks."""
    return inspect.getmodule(type(module)).eager_attention_forward(module, *args, **kwargs)  # type: ignore[union-attr]


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)


def _refuse_extras(kwargs: dict[str, Any]) -> None:
    extras = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if extras:
        raise NotImplementedError(f"{', '.join(extras)}: only the model's own eager attention computes this")


def _one_dtype(*tensors: Tensor) -> list[Tensor]:
    """What `scaled_dot_product_attention` does under autocast: rotary embeddings leave q and k in float32 there."""
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        return [x.to(torch.get_autocast_dtype(device)) for x in tensors]
    return list(tensors)


class _MergedBlocks(torch.autograd.Function):
    """q [1, H, T, D], k and v [1, Hkv, T, D] -> [1, T, H, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None, blocks: list[Block]) -> Tensor:
        _, H, T, D = q.shape
        exact = torch.promote_types(q.dtype, torch.float32)
        out = q.new_empty(1, T, H, D, dtype=exact).transpose(1, 2)
        lse = q.new_empty(1, T, H, dtype=exact).transpose(1, 2)
        for block in blocks:
            s, t = block.query, block.key
            o, o_lse = _flash(
                q[:, :, s], k[:, :, t], v[:, :, t], 0.0, block.causal, attn_mask=_mask(block, q), scale=scale
            )
            if s == t:
                out[:, :, s], lse[:, :, s] = o, o_lse
                continue
            out[:, :, s].lerp_(o.to(exact), torch.sigmoid(o_lse - lse[:, :, s])[..., None])
            lse[:, :, s] = torch.logaddexp(o_lse, lse[:, :, s])
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.blocks = scale, blocks
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, lse = ctx.saved_tensors
        # in float32, for in bfloat16 this operator is slower: ten times so on short blocks
        q, k, v, out, grad = (x.to(lse.dtype) for x in (*tensors, grad.transpose(1, 2)))
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        for block in ctx.blocks:
            s, t = block.query, block.key
            shares = _flash_backward(
                grad[:, :, s], q[:, :, s], k[:, :, t], v[:, :, t], out[:, :, s], lse[:, :, s], 0.0, block.causal,
                attn_mask=_mask(block, q), scale=ctx.scale,
            )  # fmt: skip
            for total, share, span in zip((dq, dk, dv), shares, (s, t, t)):
                if s == t:
                    total[:, :, span] = share
                else:
                    total[:, :, span] += share
        narrow = tensors[0].dtype
        return dq.to(narrow), dk.to(narrow), dv.to(narrow), None, None


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _mask(block: Block, q: Tensor) -> Tensor | None:
    # the operator takes a mask of another type without a word and reads its bytes as q's
    return None if block.mask is None else block.mask.to(q.dtype)


# Registration

_forwarded: ContextVar[Layout | None] = ContextVar("forwarded", default=None)


@contextmanager
def forwarding(row: Row, tile: int = TILE) -> Iterator[None]:
    """While a pack's row goes through a model whose attention is one of `WAYS`."""
    token = _forwarded.set(Layout(row, tile))
    try:
        yield
    finally:
        _forwarded.reset(token)


def _register(
    way: str, attention: Callable[..., Any], mask_of_pack: Callable[..., Any], plain_mask: Callable[..., Any]
):
    def mask(*args: Any, mask_function: MaskFunction = causal_mask_function, **kwargs: Any) -> Any:
        if (layout := _forwarded.get()) is not None:
            return mask_of_pack(layout, mask_function, kwargs["dtype"])
        return plain_mask(*args, mask_function=mask_function, **kwargs)

    AttentionInterface.register(f"branchwise_{way}", attention)
    AttentionMaskInterface.register(f"branchwise_{way}", mask)


_register("flex", _flex_attention, _flex_mask, sdpa_mask)
_register("blocks", _blocks_attention, _blocks_mask, sdpa_mask)
_register("dense", _plain_attention, _dense_mask, sdpa_mask)
_register("eager", _eager_attention, _dense_mask, eager_mask)
AttentionInterface.register(PLAIN, _plain_attention)
AttentionMaskInterface.register(PLAIN, sdpa_mask)
