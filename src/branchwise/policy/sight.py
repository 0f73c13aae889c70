"""Whether trees with images are exact for a model, found by trying: families that are not known would fail silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from branchwise.data.prompt import PER_TOKEN, SeeingRenderer
from branchwise.errors import ConfigError
from branchwise.policy.pack import Pictured, Row
from branchwise.policy.sharing import TOLERANCE, Sharing, Widened, backbone_of
from branchwise.policy.vision import Inputs, TextInputs
from branchwise.tree import Images

BRANCHES = (5, 3)
"""Tokens of what hangs on the prompt."""


@torch.no_grad()
def check_sight(model: Any, inputs: Inputs, sharing: Sharing, processing_class: Any) -> None:
    """See that two branches on a prompt with two images have the states of two rows through the whole model.

    Raises:
        ConfigError: they have not.
    """
    if isinstance(inputs, TextInputs) or not SeeingRenderer(processing_class).templates.chat_template:
        return
    given, images = _prompt(processing_class)
    prompt = given["input_ids"][0].to(model.device)
    branches = [torch.arange(3, 3 + n, device=model.device) for n in BRANCHES]
    with Widened(), torch.autocast(model.device.type, enabled=False):
        wanted = [_whole(model, given, branch) for branch in branches]
        row = _row(prompt, branches)
        seeing = inputs.seeing(model, row, [Pictured(images, 0, len(prompt), len(row.ids_T))])
        states = sharing.hidden(backbone_of(model), seeing)
    start = len(prompt)
    for branch, whole in zip(branches, wanted):
        shared = torch.cat([states[: len(prompt)], states[start : (start := start + len(branch))]])
        difference = float((shared - whole).norm() / whole.norm())
        if not difference < TOLERANCE["states"]:
            raise ConfigError(
                f"model.path: {model.config.model_type!r} sees in a way that is not known here: on a tree with images "
                f"its states differ by {difference:.1g} from the whole model's; choose another vision-language model"
            )


def _prompt(processing_class: Any) -> tuple[dict[str, Tensor], Images]:
    """Two pictures of different shapes in a prompt, as the processor gives them."""
    renderer = SeeingRenderer(processing_class)
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 255, (*shape, 3), np.uint8)) for shape in ((48, 96), (64, 64))]
    text = {"type": "text", "text": "a b"}
    messages = [{"role": "user", "content": [{"type": "image"}, text, {"type": "image"}, text]}]
    given = renderer.processor(
        text=[renderer.text(messages)], images=pictures, add_special_tokens=False, return_tensors="pt"
    )
    return given, Images({name: value for name, value in given.items() if name not in PER_TOKEN})


def _whole(model: Any, given: dict[str, Tensor], branch: Tensor) -> Tensor:
    """[T, H]: the states of a prompt and what follows it, from the whole model."""
    longer = {}
    for name, value in given.items():
        if name in PER_TOKEN:
            follows = {"input_ids": branch, "attention_mask": torch.ones_like(branch)}
            end = follows.get(name, torch.zeros_like(branch))[None]
            longer[name] = torch.cat([value.to(model.device), end.to(value.dtype)], 1)
        else:
            longer[name] = value.to(model.device)
    return model.base_model(**longer, use_cache=False).last_hidden_state[0]


def _row(prompt: Tensor, branches: list[Tensor]) -> Row:
    lengths = torch.tensor([len(part) for part in (prompt, *branches)], device=prompt.device)
    start_J = lengths.cumsum(0) - lengths
    depths = [torch.arange(len(prompt), device=prompt.device)]
    depths += [len(prompt) + torch.arange(len(branch), device=prompt.device) for branch in branches]
    parent_J = torch.tensor([-1, *[0] * len(branches)], device=prompt.device)
    return Row(torch.cat([prompt, *branches]), torch.cat(depths), start_J, parent_J)
