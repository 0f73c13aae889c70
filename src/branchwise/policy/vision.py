"""What a backbone is fed: token ids, or for models that see, embeddings with images at their placeholders.

Families of vision-language models differ in what their processor gives and in what their language model takes; both
are looked at, names of models are not. A question's images are encoded once, whatever hangs on its prompts:

- features stand where the processor put placeholders into a *prompt*; a placeholder that was sampled is a token;
- positions of several axes (M-RoPE) are the model's own `get_rope_index` of the prompt; what hangs on the prompt goes
  on from the largest of them, one a token;
- features for deeper layers (DeepStack) go to the layers that ask for them;
- where the processor marks images as seen in both directions (`token_type_ids`), an image is a node of its own in the
  row, and the attention over the tree treats it as such.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from branchwise.policy.pack import Pack, Pictured, Row
from branchwise.policy.sharing import backbone_of
from branchwise.tree import Images


class TextInputs:
    """Of a model that does not see: a pack's own token ids."""

    frozen = True

    def row(self, model: Any, pack: Pack) -> Row:
        return pack

    def begin(self, model: Any, pack: Pack) -> None:
        return None

    def finish(self, pack: Pack) -> None:
        return None

    def abandon(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Features:
    """What an encoder made of a question's images."""

    embeds_FH: Tensor
    """One for each placeholder."""
    deep: list[Tensor]
    """[F, H] for each of the first layers, to be added to their output."""

    @property
    def tensors(self) -> list[Tensor]:
        return [self.embeds_FH, *self.deep]

    def leaf(self) -> Features:
        """The same values, whose gradients are summed up until `backward`."""
        learning = self.embeds_FH.requires_grad
        embeds_FH, *deep = (t.detach().requires_grad_(learning) for t in self.tensors)
        return Features(embeds_FH, deep)

    def backward(self, leaf: Features) -> None:
        """Pass the gradients that `leaf` has gathered on to the encoder."""
        pairs = [(mine, its.grad) for mine, its in zip(self.tensors, leaf.tensors) if its.grad is not None]
        if pairs:
            torch.autograd.backward([mine for mine, _ in pairs], [grad for _, grad in pairs])


@dataclass(slots=True)
class SeeingRow(Row):
    """A row in which images stand at their placeholders."""

    embeds_TH: Tensor
    place_AT: Tensor | None
    """int64 [A, T]: positions on A axes where the model has several; None: `position_T`."""
    slot_T: Tensor
    """int64 [T]: which feature stands there; -1: a token."""
    deep: list[Tensor]
    two_way: bool
    """Images are nodes of their own, whose tokens see each other in both directions."""

    def feed(self, place_RL: Tensor) -> dict[str, Any]:
        position = self.position_T[place_RL] if self.place_AT is None else self.place_AT[:, place_RL]
        fed: dict[str, Any] = {"inputs_embeds": self.embeds_TH[place_RL], "position_ids": position}
        if self.deep:
            slot_RL = self.slot_T[place_RL]
            seen_RL = slot_RL >= 0
            slot_V = slot_RL[seen_RL]
            fed |= {"visual_pos_masks": seen_RL, "deepstack_visual_embeds": [deep[slot_V] for deep in self.deep]}
        return fed

    def part(self, place_T: Tensor, start_J: Tensor, parent_J: Tensor) -> Row:
        return SeeingRow(
            self.ids_T[place_T],
            self.position_T[place_T],
            start_J,
            parent_J,
            self.embeds_TH[place_T],
            None if self.place_AT is None else self.place_AT[:, place_T],
            self.slot_T[place_T],
            self.deep,
            self.two_way,
        )

    def whole_J(self) -> np.ndarray:
        return ((self.slot_T[self.start_J] >= 0) & self.two_way).cpu().numpy()


class VisionInputs:
    """Of a vision-language model.

    Args:
        model: the transformers model.
        frozen: its encoder does not change while trees live, so that features are kept as long as they do.
    """

    def __init__(self, model: Any, frozen: bool) -> None:
        self.frozen = frozen
        self.placeholder: int = model.config.image_token_id
        self.names = inspect.signature(model.forward).parameters.keys()
        self.two_way = "token_type_ids" in self.names
        self._kept: WeakKeyDictionary[Images, Features] = WeakKeyDictionary()
        self._held: dict[Images, tuple[Features, Features]] = {}

    def begin(self, model: Any, pack: Pack) -> None:
        """Encode what the pack is the first of its optimizer step to have, for it and for the others."""
        for p in () if self.frozen else pack.pictured:
            if p.images not in self._held:
                features = self._encode(model, p.images)
                self._held[p.images] = features, features.leaf()

    def finish(self, pack: Pack) -> None:
        """After the pack's backward: the encoder's, for what it is the last to have."""
        for images in pack.last:
            if images in self._held:
                features, leaf = self._held.pop(images)
                features.backward(leaf)

    def abandon(self) -> None:
        """A pack has failed; nothing of the others is kept."""
        self._held.clear()

    def forget(self) -> None:
        """The weights have changed."""
        self._kept.clear()

    def row(self, model: Any, pack: Pack) -> Row:
        """A pack as its model's backbone takes it."""
        return self.seeing(model, pack, pack.pictured)

    def seeing(self, model: Any, row: Row, pictured: Sequence[Pictured]) -> SeeingRow:
        """A row with images where its prompts have placeholders.

        Raises:
            ValueError: a prompt has more or fewer placeholders than its images have features.
        """
        found = {p.images: None for p in pictured}
        features = {images: self._features(model, images) for images in found}
        first, order = {}, 0
        for images, f in features.items():
            first[images] = order
            order += len(f.embeds_FH)
        slot_T = torch.full_like(row.ids_T, -1)
        place_AT = _axes(model, row.position_T)
        for p in pictured:
            ids_P = row.ids_T[p.start : p.end]
            shown_F = (ids_P == self.placeholder).nonzero()[:, 0]
            if len(shown_F) != (count := len(features[p.images].embeds_FH)):
                raise ValueError(f"{len(shown_F)} image placeholders in a prompt whose images have {count} features")
            slot_T[p.start + shown_F] = first[p.images] + torch.arange(count, device=slot_T.device)
            if place_AT is not None:
                place_AP = self.positions(model, ids_P, p.images)
                place_AT[:, p.start : p.end] = place_AP
                place_AT[:, p.end : p.tail] += place_AP.max() + 1 - len(ids_P)
        embeds_TH = model.get_input_embeddings()(row.ids_T.masked_fill(slot_T >= 0, 0))
        stacked = [torch.cat(parts) for parts in zip(*(f.tensors for f in features.values()))]
        if stacked:
            seen_F = (slot_T >= 0).nonzero()[:, 0]
            embeds_TH = embeds_TH.index_put((seen_F,), stacked[0][slot_T[seen_F]].to(embeds_TH.dtype))
        start_J, parent_J = self._nodes(row, slot_T)
        return SeeingRow(
            row.ids_T, row.position_T, start_J, parent_J, embeds_TH, place_AT, slot_T, stacked[1:], self.two_way
        )

    def positions(self, model: Any, ids_P: Tensor, images: Images) -> Tensor:
        """int64 [A, P]: a prompt's positions on each axis, where the model has several."""
        given = {"mm_token_type_ids": (ids_P == self.placeholder).int()[None], **self._inputs(model, images)}
        index = model.base_model.get_rope_index
        names = inspect.signature(index).parameters.keys()
        place_A1P, _ = index(input_ids=ids_P[None], **{name: given[name] for name in given if name in names})
        return place_A1P[:, 0]

    def _nodes(self, row: Row, slot_T: Tensor) -> tuple[Tensor, Tensor]:
        """The row's nodes, cut where images begin and end if these are seen in both directions."""
        if not self.two_way:
            return row.start_J, row.parent_J
        edges = np.flatnonzero(np.diff((slot_T >= 0).cpu().numpy())) + 1
        start_J, parent_J = cut(row.start_J.cpu().numpy(), row.parent_J.cpu().numpy(), edges)
        return torch.as_tensor(start_J, device=slot_T.device), torch.as_tensor(parent_J, device=slot_T.device)

    def _features(self, model: Any, images: Images) -> Features:
        if images in self._held:
            return self._held[images][1]
        if not self.frozen:
            return self._encode(model, images)
        if images not in self._kept:
            with torch.no_grad():
                self._kept[images] = self._encode(model, images)
        return self._kept[images]

    def _encode(self, model: Any, images: Images) -> Features:
        found = model.get_image_features(**self._inputs(model, images), return_dict=True)
        deep = getattr(found, "deepstack_features", None) or []
        return Features(_flat(found.pooler_output), [_flat(layer) for layer in deep])

    def _inputs(self, model: Any, images: Images) -> dict[str, Tensor]:
        return {name: t.to(model.device) for name, t in images.tensors.items() if name in self.names}


Inputs = TextInputs | VisionInputs


def sees(model: Any, processing_class: Any) -> bool:
    """Whether a model takes images, and its processor prepares them."""
    return hasattr(model, "get_image_features") and hasattr(processing_class, "image_processor")


def eyes(model: Any) -> Iterator[nn.Parameter]:
    """The parameters that encode images: those that are not the language model's."""
    head = model.get_output_embeddings()
    language = [*backbone_of(model).parameters(), *(head.parameters() if head is not None else ())]
    spoken = {id(p) for p in language}
    return (p for p in model.parameters() if id(p) not in spoken)


def inputs_of(model: Any, processing_class: Any, frozen: bool | None = None) -> Inputs:
    """How a model is fed.

    Args:
        frozen: whether its encoder stays as it is; None: where none of its parameters is trained.
    """
    if not sees(model, processing_class):
        return TextInputs()
    return VisionInputs(model, not any(p.requires_grad for p in eyes(model)) if frozen is None else frozen)


def cut(start_J: np.ndarray, parent_J: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes cut at some places of their row: each becomes a chain, on whose end its children hang."""
    start_C = np.union1d(start_J, places)
    owner_C = np.searchsorted(start_J, start_C, side="right") - 1
    last_J = np.searchsorted(owner_C, np.arange(len(start_J)), side="right") - 1
    above_C = np.where(parent_J[owner_C] < 0, -1, last_J[parent_J[owner_C]])
    begins_C = np.diff(owner_C, prepend=-1) > 0
    return start_C, np.where(begins_C, above_C, np.arange(len(start_C)) - 1)


def _axes(model: Any, position_T: Tensor) -> Tensor | None:
    """[3, T] where the model's positions have several axes: of text they are all alike."""
    if not hasattr(model.base_model, "get_rope_index"):
        return None
    return position_T.expand(3, -1).clone()


def _flat(features: Any) -> Tensor:
    parts = features if isinstance(features, list | tuple) else [features]
    return torch.cat([part.flatten(0, -2) for part in parts])
