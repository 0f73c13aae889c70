"""From trees and credits to packs: flat tensors in which each tree token stands once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from branchwise.algorithm.objective import Scored


@dataclass(slots=True)
class Pack:
    """Whole trees in one row. A node's tokens are contiguous; nodes stand in depth-first order, so its descendants follow it."""

    ids_T: Tensor
    """int64 [T]."""
    position_T: Tensor
    """int64 [T]: distance from the root of the token's path."""
    start_J: Tensor
    """int64 [J]: where each node's tokens begin (J nodes, depth-first)."""
    parent_J: Tensor
    """int64 [J]: place of the node's parent among the pack's nodes; -1 for a root."""
    source_S: Tensor
    """int64 [S]: the position in the row whose hidden state predicts the scored token; the parent's last for a node's first."""
    target_S: Tensor
    """int64 [S]: the id of the scored token."""
    scored: Scored
