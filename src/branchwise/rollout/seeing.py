"""Prompts with images, in the engine: encoded once a question, embedded where the prompt has placeholders."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from branchwise.policy.output import find_output
from branchwise.policy.pack import Pictured, Row
from branchwise.policy.sharing import backbone_of
from branchwise.policy.vision import SeeingRow, VisionInputs, sees
from branchwise.rollout.prefill import Decoder, Prompt


class SeeingDecoder(Decoder):
    """A vision-language model as a function of tokens, images and cache; what is sampled after a prompt is tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.inputs = VisionInputs(model, frozen=True)
        self.placeholder = self.inputs.placeholder
        self.output = find_output(model)

    def changed(self) -> None:
        self.inputs.forget()

    def prompt(
        self,
        prompts: Sequence[Prompt],
        ids_BT: Tensor,
        position_BT: Tensor,
        mask_BC: Tensor | None,
        cache: Cache,
    ) -> tuple[Tensor, Tensor]:
        if not any(prompt.images for prompt in prompts):
            return super().prompt(prompts, ids_BT, position_BT, mask_BC, cache)
        B, T = ids_BT.shape
        starts = torch.arange(0, B * T, T, device=ids_BT.device)
        pictured = [
            Pictured(prompt.images, end - len(prompt), end, end)
            for end, prompt in zip(range(T, B * T + 1, T), prompts)
            if prompt.images
        ]
        row = Row(ids_BT.flatten(), position_BT.flatten(), starts, torch.full_like(starts, -1))
        seeing = self.inputs.seeing(self.model, row, pictured)
        fed = seeing.feed(torch.arange(B * T, device=ids_BT.device).view(B, T))
        out = backbone_of(self.model)(
            **fed,
            attention_mask=self._mask(seeing, fed["inputs_embeds"], mask_BC, cache),
            use_cache=True,
            **{self.cache_name: cache},
        )
        logits_BV = self.output.logits(self.model, out.last_hidden_state[:, -1])
        return logits_BV, fed["position_ids"].reshape(-1, B, T).amax((0, 2)) + 1

    def _mask(self, seeing: SeeingRow, embeds_BTH: Tensor, mask_BC: Tensor | None, cache: Cache) -> Any:
        """The columns that hold tokens; where images are seen in both directions, the model's own mask for that."""
        B, T, _ = embeds_BTH.shape
        if not seeing.two_way:
            return None if mask_BC is None else mask_BC.long()
        mask_BC = torch.ones(B, T, device=embeds_BTH.device) if mask_BC is None else mask_BC
        make = self.model.create_masks_for_generate
        given = {
            "config": self.model.config,
            "inputs_embeds": embeds_BTH,
            "attention_mask": mask_BC.long(),
            self.cache_name: cache,
            "position_ids": None,
            "token_type_ids": (seeing.slot_T >= 0).long().view(B, T),
            "is_first_iteration": True,
        }
        names = inspect.signature(make).parameters.keys()
        return make(**{name: value for name, value in given.items() if name in names})


def decoder_of(model: Any, processing_class: Any) -> Decoder:
    """The decoder that a model needs."""
    return SeeingDecoder(model) if sees(model, processing_class) else Decoder(model)
