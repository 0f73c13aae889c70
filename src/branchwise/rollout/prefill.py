"""The forward of a sampling model, and the prompts' part of it: each prompt once, a common beginning once for all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache

from branchwise.policy.attention import PLAIN
from branchwise.policy.sharing import backbone_of
from branchwise.rollout.cache import admits_gaps, bytes_per_token, is_recurrent, joined, new_cache, reorder, repeated
from branchwise.tree import Images

PREFILL_TOKENS = 8192
"""Prompt tokens forwarded at once, padding included; bounds memory."""

CACHE_NAMES = ("cache", "past_key_values", "cache_params")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sampled after."""

    ids_T: np.ndarray
    images: Images | None = None

    def __len__(self) -> int:
        return len(self.ids_T)


class Decoder:
    """A transformers causal language model as a function of tokens and cache."""

    placeholder: int | None = None
    """The id that stands for a piece of an image in prompts."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary: int = model.get_output_embeddings().weight.shape[0]
        names = inspect.signature(model.forward).parameters
        # transformers 5.24 calls it cache, earlier ones the other two
        cache_names = [name for name in CACHE_NAMES if name in names]
        if not cache_names:
            raise ValueError(
                f"model.path: {model.config.model_type!r} decodes without a cache, so nothing can be shared"
            )
        self.cache_name = cache_names[0]
        backbone: Any = backbone_of(model)
        # the backbone's own: a policy that samples for itself keeps the attention that shares prefixes
        if backbone.config._attn_implementation == "sdpa":
            backbone.set_attn_implementation(PLAIN)
        self.accepted = names.keys()
        config = model.config.get_text_config(decoder=True)
        learned = getattr(config, "rope_parameters", None) is None
        self.positions: int | None = getattr(config, "max_position_embeddings", None) if learned else None
        """The most tokens a row may have, where positions are learned one by one."""

    def new_cache(self) -> Cache:
        return new_cache(self.model.config)

    def changed(self) -> None:
        """The weights are others than before."""

    def prompt(
        self,
        prompts: Sequence[Prompt],
        ids_BT: Tensor,
        position_BT: Tensor,
        mask_BC: Tensor | None,
        cache: Cache,
    ) -> tuple[Tensor, Tensor]:
        """Feed the ends of prompts, which are `ids_BT`; as for a call.

        Returns:
            The logits after the last token [B, V], and the position of the next [B].
        """
        return self(ids_BT, position_BT, mask_BC, cache), position_BT[:, -1] + 1

    @cached_property
    @torch.no_grad()
    def bytes_per_token(self) -> int:
        """Of the cache, a row."""
        cache, zero = self.new_cache(), torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        self(zero, zero, None, cache)
        return bytes_per_token(cache)

    def __call__(self, ids_RT: Tensor, position_RT: Tensor, mask_RC: Tensor | None, cache: Cache) -> Tensor:
        """Feed T tokens to each row.

        Args:
            ids_RT: int64.
            position_RT: int64, from 0 at the row's first token.
            mask_RC: which columns of the cache, the T new ones included, hold tokens of the row; None: all.
            cache: lengthened by T columns.

        Returns:
            The logits after the last token, in the model's type [R, V].
        """
        # an index, for a slice of several rows would make the head's product a batched one
        last = torch.tensor([ids_RT.shape[1] - 1], device=ids_RT.device)
        optional = {"position_ids": position_RT, "logits_to_keep": last, self.cache_name: cache}
        output = self.model(
            input_ids=ids_RT,
            attention_mask=None if mask_RC is None else mask_RC.long(),
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self.accepted},
        )
        return output.logits[:, -1]


@dataclass(slots=True)
class Prefilled:
    """Prompts that have been forwarded, a row each."""

    cache: Cache
    mask_BC: Tensor | None
    """bool: the columns that hold tokens; None: all."""
    columns: int
    next_B: Tensor
    """Position of the token that follows."""
    logits_BV: Tensor


@dataclass(slots=True)
class Beginning:
    """What all prompts begin with, forwarded: a cache of one row (empty where nothing is shared)."""

    cache: Cache
    length: int


def common_beginning(decoder: Decoder, prompts: Sequence[Prompt]) -> Beginning:
    """Forward the beginning that all prompts share; each keeps at least one token of its own.

    Prompts with images share none, for equal ids do not make equal images.
    """
    cache = decoder.new_cache()
    alone = len(prompts) == 1 or is_recurrent(cache) or any(prompt.images for prompt in prompts)
    length = 0 if alone else _shared(prompts)
    if length:
        ids_1T = torch.from_numpy(prompts[0].ids_T[:length].copy())[None].to(decoder.device)
        decoder(ids_1T, torch.arange(length, device=decoder.device)[None], None, cache)
    return Beginning(cache, length)


def prefill(decoder: Decoder, prompts: Sequence[Prompt], beginning: Beginning) -> Prefilled:
    """Forward what follows the common beginning in each prompt; row b is prompt b."""
    groups = list(_groups([len(prompt) for prompt in prompts], beginning.length, admits_gaps(beginning.cache)))
    parts = [_forward(decoder, [prompts[b] for b in group], beginning) for group in groups]
    width = max(mask_BC.shape[1] for _, mask_BC, _, _ in parts)
    mask_BC = torch.cat([pad(mask, (width - mask.shape[1], 0), value=False) for _, mask, _, _ in parts])
    row_B = torch.tensor([b for group in groups for b in group], device=decoder.device).argsort()
    cache = joined([cache for cache, _, _, _ in parts])
    reorder(cache, row_B)
    return Prefilled(
        cache,
        None if mask_BC.all() else mask_BC[row_B],
        width,
        torch.cat([next_B for _, _, _, next_B in parts])[row_B],
        torch.cat([logits for _, _, logits, _ in parts])[row_B],
    )


def _shared(prompts: Sequence[Prompt]) -> int:
    shortest = min(len(prompt) for prompt in prompts) - 1
    whole = np.stack([prompt.ids_T[:shortest] for prompt in prompts])
    differs = (whole != whole[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else shortest


def _groups(lengths: list[int], shared: int, gaps: bool) -> Iterator[list[int]]:
    """Prompts to forward together, by length: of one length where padding would not be exact."""
    group: list[int] = []
    for b in sorted(range(len(lengths)), key=lengths.__getitem__):
        too_many = (len(group) + 1) * (lengths[b] - shared) > PREFILL_TOKENS
        if group and (too_many or (not gaps and lengths[b] != lengths[group[-1]])):
            yield group
            group = []
        group.append(b)
    yield group


def _forward(decoder: Decoder, prompts: list[Prompt], beginning: Beginning) -> tuple[Cache, Tensor, Tensor, Tensor]:
    """The cache, mask, last logits and next position of prompts, padded between the beginning and their own tokens."""
    count, shared = len(prompts), beginning.length
    width = max(len(prompt) for prompt in prompts) - shared
    ids_BT = np.zeros((count, width), np.int64)
    mask_BC = np.ones((count, shared + width), bool)
    for b, prompt in enumerate(prompts):
        padding = shared + width - len(prompt)
        ids_BT[b, padding:] = prompt.ids_T[shared:]
        mask_BC[b, shared : shared + padding] = False
    position_BT = (mask_BC.cumsum(1) - 1).clip(min=0)[:, shared:]
    cache = repeated(beginning.cache, count) if shared else decoder.new_cache()
    mask = torch.from_numpy(mask_BC).to(decoder.device)
    logits_BV, next_B = decoder.prompt(
        prompts,
        torch.from_numpy(ids_BT).to(decoder.device),
        torch.from_numpy(position_BT).to(decoder.device),
        None if mask_BC.all() else mask,
        cache,
    )
    return cache, mask, logits_BV, next_B
