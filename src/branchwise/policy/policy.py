"""The policy π_θ: log-probs of packs, the reference it is held to, and its weights on disk."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from branchwise.policy.head import token_logprobs
from branchwise.policy.output import Output
from branchwise.policy.pack import Pack
from branchwise.policy.sharing import Sharing, backbone_of
from branchwise.policy.vision import Inputs, TextInputs, VisionInputs


class Policy:
    """A causal language model in training.

    Args:
        model: a transformers model, or a peft model around one.
        processing_class: its tokenizer or processor.
        sharing: how it forwards packs (`choose_sharing`).
        output: how its logits come about (`find_output`).
        inputs: what its backbone is fed (`inputs_of`).
        temperature: of the sampling distribution, whose log-probs these are.
        chunk: scored positions whose logits exist at once.
        precision: torch.bfloat16 to compute under autocast; torch.float32 to compute as the weights are.
        reference: whether a KL to the present weights will be asked for.
    """

    def __init__(
        self,
        model: Any,
        processing_class: Any,
        *,
        sharing: Sharing,
        output: Output,
        inputs: Inputs | None = None,
        temperature: float = 1.0,
        chunk: int = 1024,
        precision: torch.dtype = torch.float32,
        reference: bool = False,
    ) -> None:
        self.model = model
        self.processing_class = processing_class
        self.sharing = sharing
        self.output = output
        self.inputs = inputs or TextInputs()
        self.temperature = temperature
        self.chunk = chunk
        self.precision = precision
        self.adapted = isinstance(model, PeftModel)
        self._frozen = None
        if reference and not self.adapted:
            self._frozen = copy.deepcopy(model).requires_grad_(False)
        # what is frozen is the reference's, too
        self._reference_inputs = self.inputs if self.inputs.frozen else VisionInputs(_transformer(model), frozen=True)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processing_class, "tokenizer", self.processing_class)

    def describe(self) -> str:
        """How it runs, in a line for people: parameters, types, and how prefixes are shared."""
        parameters = self.trainable_parameters()
        millions = sum(p.numel() for p in parameters) / 1e6
        held, computed = (str(t).removeprefix("torch.") for t in (self.model.dtype, self.precision))
        line = (
            f"policy: {millions:,.1f}M parameters trained, weights in {held}, computed in {computed} on {self.device}; "
        )
        if self.sharing.way == "rows":
            return line + f"prefixes are NOT shared, each path is a row of its own ({self.sharing.reason})"
        line += f"prefixes shared by {self.sharing.way}"
        if isinstance(self.inputs, TextInputs):
            return line
        return line + f"; images encoded once a question{', without gradient' if self.inputs.frozen else ''}"

    def logprobs(self, pack: Pack, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """log π_θ of the pack's scored tokens, and on request the entropy where each was drawn; both [S], float32."""
        return self._score(_transformer(self.model), self.inputs, pack, entropy)

    @contextmanager
    def encoding(self, pack: Pack) -> Iterator[None]:
        """Around the forward and backward of each of an optimizer step's packs, in their order.

        So the images of a question that stands in several packs are encoded once, forward and backward.
        """
        with self._autocast():
            self.inputs.begin(_transformer(self.model), pack)
        try:
            yield
        except BaseException:
            self.inputs.abandon()
            raise
        self.inputs.finish(pack)

    @torch.no_grad()
    def reference_logprobs(self, pack: Pack) -> Tensor:
        """log π_ref of the pack's scored tokens, [S]: the model with its adapter off, or as it was when loaded.

        Raises:
            ValueError: the policy keeps no reference.
        """
        if self.adapted:
            with self.model.disable_adapter():
                return self._score(_transformer(self.model), self._reference_inputs, pack)[0]
        if self._frozen is None:
            raise ValueError("the policy keeps no reference; set algorithm.kl, or load it with reference=True")
        return self._score(self._frozen, self._reference_inputs, pack)[0]

    def trainable_parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def save(self, folder: str | Path) -> None:
        """Write what `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load.

        An adapter is written to `adapter` beside weights into which it is merged; over 4-bit weights, which cannot take
        it in, it is written alone, and loads with its base.
        """
        folder = Path(folder)
        if self.adapted and getattr(_transformer(self.model), "is_quantized", False):
            self.model.save_pretrained(folder)
        elif self.adapted:
            self.model.save_pretrained(folder / "adapter")
            copy.deepcopy(self.model).merge_and_unload().save_pretrained(folder)
        else:
            self.model.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)

    def _score(self, model: Any, inputs: Inputs, pack: Pack, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        with self._autocast():
            hidden_TH = self.sharing.hidden(backbone_of(model), inputs.row(model, pack))
            return token_logprobs(
                hidden_TH.index_select(0, pack.source_S),
                self.output.head(model),
                pack.target_S,
                temperature=self.temperature,
                scale=self.output.scale,
                softcap=self.output.softcap,
                chunk=self.chunk,
                entropy=entropy,
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16)


def _transformer(model: Any) -> Any:
    """The transformers model, whose layers have peft's within them."""
    return model.get_base_model() if isinstance(model, PeftModel) else model
