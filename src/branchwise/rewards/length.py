"""The built-in reward for length: DAPO's soft punishment of overlong responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def length(completion_ids: Sequence[Sequence[int]], limit: int = 4096, buffer: int = 512, **_: Any) -> list[float]:
    """0 up to `limit` − `buffer` tokens, then falling to −1 at `limit` (arXiv 2503.14476, equation 13).

    Args:
        completion_ids: the responses' tokens.
        limit: tokens at which the punishment is whole.
        buffer: tokens over which it grows.

    Raises:
        ValueError: a buffer below 1 or above the limit.
    """
    from branchwise.algorithm.advantage import overlong_penalty

    if not 1 <= buffer <= limit:
        raise ValueError(f"buffer: {buffer} tokens; it must be between 1 and limit: {limit}")
    return [overlong_penalty(len(ids), limit, buffer) for ids in completion_ids]
