"""Key-value caches whose rows fork, move and leave. Rows are aligned on the right: all end at the same column."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

ROOM = 128
"""Columns that a buffer grows by."""
KNOWN = (DynamicLayer, DynamicSlidingWindowLayer)
"""Attention whose keys and values fork, beside layers of linear attention."""


class RoomyLayer(DynamicLayer):
    """A full-attention layer in a buffer with room: a token is written rather than concatenated, a fork copies one row.

    Args:
        like: an initialised layer of the same model.
        rows: the most rows there will be.
    """

    def __init__(self, like: DynamicLayer, rows: int) -> None:
        super().__init__()
        assert like.keys is not None and like.values is not None
        self.lazy_initialization(like.keys, like.values)
        self.rows = self.length = 0
        # zeros: what is masked is read too, and a weight of 0 makes NaN of what is no number
        self.key_buffer, self.value_buffer = (
            states.new_zeros(rows, states.shape[1], like.get_seq_length() + ROOM, states.shape[3])
            for states in (like.keys, like.values)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[-2]
        if self.length > self.key_buffer.shape[-2]:
            self._resize(right=self.length - self.key_buffer.shape[-2] + ROOM)
        keys, values = self._expose()
        keys[:, :, start:] = key_states
        values[:, :, start:] = value_states
        return keys, values

    def admit(self, layer: DynamicLayer, index_N: Tensor) -> None:
        """Add rows `index_N` of another layer, ending at the present column."""
        assert layer.keys is not None and layer.values is not None
        width, first, self.rows = layer.get_seq_length(), self.rows, self.rows + len(index_N)
        if width > self.length:
            self.shift(width - self.length)
        keys, values = self._expose()
        keys[first:, :, self.length - width :] = layer.keys[index_N]
        values[first:, :, self.length - width :] = layer.values[index_N]

    def shift(self, columns: int) -> None:
        """Insert columns on the left; where negative, drop them."""
        self.length += columns
        self._resize(left=columns)
        self._expose()

    def move(self, source_R: Tensor, target_R: Tensor, rows: int) -> None:
        """Copy some rows over others; `rows` are left."""
        for buffer in (self.key_buffer, self.value_buffer):
            buffer[target_R, :, : self.length] = buffer[source_R, :, : self.length]
        self.rows = rows
        self._expose()

    def _resize(self, left: int = 0, right: int = 0) -> None:
        self.key_buffer = pad(self.key_buffer, (0, 0, left, right))
        self.value_buffer = pad(self.value_buffer, (0, 0, left, right))

    def _expose(self) -> tuple[Tensor, Tensor]:
        self.keys = keys = self.key_buffer[: self.rows, :, : self.length]
        self.values = values = self.value_buffer[: self.rows, :, : self.length]
        return keys, values


def new_cache(config: Any) -> Cache:
    """An empty cache with the layers that a model wants.

    Raises:
        ValueError: a layer's state is of a kind that is not known to fork.
    """
    cache = DynamicCache(config=config.get_text_config(decoder=True))
    for layer in cache.layers:
        if not (isinstance(layer, LinearAttentionCacheLayerMixin) or _is_empty(layer) or type(layer) in KNOWN):
            raise ValueError(
                f"model.path: {config.model_type!r} keeps a {type(layer).__name__} between tokens, which the "
                "in-process engine cannot fork; choose a model with full, sliding-window or linear attention"
            )
    return cache


def admits_gaps(cache: Cache) -> bool:
    """Whether masked columns may stand between a row's tokens: in full attention alone, told positions apart."""
    return all(type(layer) is DynamicLayer or _is_empty(layer) for layer in cache.layers)


def is_recurrent(cache: Cache) -> bool:
    """Whether a layer folds all tokens into one state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def repeated(cache: Cache, count: int) -> Cache:
    """A copy of a cache of one row, with `count` rows."""
    cache = copy.deepcopy(cache)
    reorder(cache, torch.zeros(count, dtype=torch.int64))
    return cache


def joined(caches: list[Cache]) -> Cache:
    """One cache with the rows of all, shorter ones padded on the left."""
    length = max(_length(cache) for cache in caches)
    whole = copy.copy(caches[0])
    whole.layers = [_joined(list(layers), length) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return whole


def forked(cache: Cache, index_R: Tensor, rows: int) -> Cache:
    """A cache for decoding whose row r begins as row `index_R[r]`; the given one stays as it is.

    Args:
        rows: the most rows there will be.
    """
    fork = copy.copy(cache)
    fork.layers = []
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            roomy = RoomyLayer(layer, rows)
            roomy.admit(layer, index_R)
            fork.layers.append(roomy)
        else:
            fork.layers.append(_joined([layer], _length(cache)))
            fork.layers[-1].reorder_cache(index_R)  # type: ignore[arg-type]
    return fork


def admit(cache: Cache, new: Cache, index_N: Tensor) -> None:
    """Add rows `index_N` of another cache to one that admits gaps."""
    for layer, others in zip(cache.layers, new.layers, strict=True):
        if isinstance(layer, RoomyLayer):
            layer.admit(others, index_N)  # type: ignore[arg-type]


def drop_columns(cache: Cache, columns: int) -> None:
    """Leave out the first columns, which hold tokens of no row."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.shift(-columns)


def bytes_per_token(cache: Cache) -> int:
    """What one more token adds to a row of a cache that holds one token."""
    attention = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    states = [states for layer in attention for states in (layer.keys, layer.values) if states is not None]
    return sum(s.nbytes for s in states)


def reorder(cache: Cache, index_R: Tensor) -> None:
    """Row r becomes what row `index_R[r]` was; in a buffer, rows that keep their place cost nothing."""
    moved_R = (index_R != torch.arange(len(index_R), device=index_R.device)).nonzero()[:, 0]
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.move(index_R[moved_R], moved_R, len(index_R))
        else:
            layer.reorder_cache(index_R)  # type: ignore[arg-type]


def _is_empty(layer: Any) -> bool:
    """Whether a layer keeps nothing (it has no attention, or reads another layer's keys)."""
    return not isinstance(layer, (CacheLayerMixin, LinearAttentionCacheLayerMixin))


def _length(cache: Cache) -> int:
    attention = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return attention[0].get_seq_length() if attention else 0


def _joined(layers: list[Any], length: int) -> Any:
    """The rows of several caches' layers in one, ending at column `length`."""
    whole = copy.copy(layers[0])
    if isinstance(whole, LinearAttentionCacheLayerMixin):
        for name in ("conv_states", "recurrent_states"):
            setattr(whole, name, _joined_states([getattr(layer, name) for layer in layers]))
    if isinstance(whole, DynamicLayer) and whole.is_initialized:
        width = max(layer.keys.shape[-2] for layer in layers)
        for name in ("keys", "values"):
            states = [getattr(layer, name) for layer in layers]
            setattr(whole, name, torch.cat([pad(s, (0, 0, width - s.shape[-2], 0)) for s in states]))
        if isinstance(whole, DynamicSlidingWindowLayer):
            whole.cumulative_length = length
    return whole


def _joined_states(states: list[dict[int, Tensor | None]]) -> dict[int, Tensor | None]:
    return {
        i: None if first is None else torch.cat([state[i] for state in states])  # type: ignore[misc]
        for i, first in states[0].items()
    }
