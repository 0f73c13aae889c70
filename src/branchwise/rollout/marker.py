"""Where a thought ends: at the token that completes the marker's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

UNFINISHED = "\ufffd"
"""What decoding gives for a token that holds part of a character's bytes."""


class Marker:
    """The text that ends a thought, and how to notice it in token ids.

    It may span tokens, end inside one, be cut within a character, or be one special token. Only rows whose newest
    token is in `may_end_V` need be decoded.

    Args:
        text: such as `</think>`.
        tokenizer: a transformers tokenizer.
        vocabulary: V, the number of the model's logits.
    """

    def __init__(self, text: str, tokenizer: Any, vocabulary: int) -> None:
        self.text = text
        self.tokenizer = tokenizer
        self.ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        """The marker as the tokenizer writes it, for closing by force."""
        if not self.ids:
            raise ValueError(f"tree.marker: the tokenizer has no tokens for {text!r}; choose another marker")
        self.may_end_V: Tensor = torch.zeros(vocabulary, dtype=torch.bool)
        """bool [V]: tokens that hold the marker's last character, or a part of some character."""
        known = min(vocabulary, len(tokenizer))
        ends = [text[-1] in token or UNFINISHED in token for token in _texts(tokenizer, known)]
        self.may_end_V[:known] = torch.tensor(ends)

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether the newest of a thought's tokens completes the marker, given that none before did."""
        enough = len(self.text) + 4  # the first characters of a tail may be torn
        tail = len(self.text.encode()) + 4
        while True:
            text = self.tokenizer.decode(
                list(ids[-tail:]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            if self.text in text:
                return True
            if len(text) >= enough or tail >= len(ids):
                return False
            tail *= 2  # some tokens have no text


def _texts(tokenizer: Any, known: int) -> list[str]:
    """Each token's text after another token's, for alone some tokenizers strip its space."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
    offset = len(tokenizer.decode(anchor, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    pairs = [[*anchor, token] for token in range(known)]
    texts = tokenizer.batch_decode(pairs, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return [text[offset:] for text in texts]
