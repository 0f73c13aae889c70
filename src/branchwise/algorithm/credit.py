"""Where algorithms end: what a tree's nodes are credited with. Packing and the trainer read only this."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

THOUGHT, ANSWER = 0, 1
"""Segments, for clip ranges: thoughts and whole responses are 0, answers 1."""


@dataclass(slots=True)
class Credit:
    """One tree's credit, a value per node of `tree.nodes`; prompts have none (0, and unit -1)."""

    advantage: list[float | np.ndarray]
    """A of the node's sampled tokens: one number, or one for each token [T]."""
    weight: np.ndarray
    """float64 [nodes]: what each sampled token of the node weighs in the optimizer step's loss; 0 leaves it out."""
    unit: np.ndarray
    """int64 [nodes]: nodes of one number are one y; `ratio: sequence` averages over it."""
    segment: np.ndarray
    """int64 [nodes]: THOUGHT or ANSWER."""
    context: dict[int, int]
    """For each phrasing's place, the place of the phrasing whose prompt its tokens are conditioned on."""
