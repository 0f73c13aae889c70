"""From hidden states to the model's own logits: soft-capped, scaled, or however it makes them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from branchwise.policy.sharing import Widened, backbone_of

TOLERANCE = 1e-5
"""The most that logits may differ from the model's own, relative to the norm."""


@dataclass(frozen=True, slots=True)
class Output:
    """logits = scale · head(hidden), or softcap · tanh(scale · head(hidden) / softcap)."""

    scale: float = 1.0
    softcap: float | None = None
    whole: bool = False
    """The model's logits are none of these; its whole forward is called for them, which is slower."""

    def head(self, model: Any) -> nn.Module:
        return WholeHead(model) if self.whole else model.get_output_embeddings()

    def logits(self, model: Any, hidden_SH: Tensor) -> Tensor:
        """[S, V], in the head's type."""
        logits_SV = self.scale * self.head(model)(hidden_SH)
        return logits_SV if self.softcap is None else self.softcap * torch.tanh(logits_SV / self.softcap)


class WholeHead(nn.Module):
    """All that a causal language model does after its backbone, called with hidden states [S, H]."""

    def __init__(self, model: Any):
        super().__init__()
        self.call = lambda ids: model(ids, use_cache=False).logits[
            0
        ]  # not a submodule: its parameters are the policy's
        self.backbone = (backbone_of(model),)

    def forward(self, hidden_SH: Tensor) -> Tensor:
        def answer(module: nn.Module, args: Any, output: Any) -> Any:
            output.last_hidden_state = hidden_SH[None]
            return output

        handle = self.backbone[0].register_forward_hook(answer)
        try:
            return self.call(torch.zeros(1, 1, dtype=torch.int64, device=hidden_SH.device))
        finally:
            handle.remove()


@torch.no_grad()
def find_output(model: Any) -> Output:
    """How the model's logits come from its head, found by giving it random hidden states.

    A scale is looked for among the numbers of its config and their inverses, a softcap among the numbers.
    """
    head = model.get_output_embeddings()
    if head is None:
        return Output(whole=True)
    config = model.config.get_text_config()
    hidden_SH = torch.randn(8, config.hidden_size, generator=torch.Generator().manual_seed(0)).to(
        model.device, model.dtype
    )
    with torch.autocast(model.device.type, enabled=False), Widened():
        hidden_SH *= 10 / head(hidden_SH).std()  # logits as large as a trained model's, so that a softcap shows
        raw_SV = head(hidden_SH)[:, :1024].cpu().double()  # mps has no float64
        wanted_SV = WholeHead(model)(hidden_SH)[:, :1024].cpu().double()
    values = {float(v) for v in config.to_dict().values() if type(v) in (int, float) and v > 0}
    scales = [1.0, *sorted(values | {1 / v for v in values})]
    for softcap, scale in product([None, *sorted(values)], scales):
        given_SV = scale * raw_SV
        if softcap is not None:
            given_SV = softcap * torch.tanh(given_SV / softcap)
        if (given_SV - wanted_SV).norm() < TOLERANCE * wanted_SV.norm():
            return Output(scale, softcap)
    return Output(whole=True)
