"""What an engine is: it grows trees, and takes new weights. The trainer knows no engine by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from branchwise.tree import Tree


@dataclass(frozen=True, slots=True)
class Limb:
    """One phrasing to grow: K thoughts and M answers from each closed one."""

    tree: Tree
    phrasing: int
    """Place of the phrasing in `tree.nodes`; its `ids_T` are the prompt."""
    thoughts: int
    answers: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Random numbers are keyed by (seed, tree.step, tree.draw, n, k, m, token)."""

    seed: int
    temperature: float = 1.0
    """0 is greedy (evaluation only)."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    marker: str | None = "</think>"
    """Ends a thought; None: whole responses are sampled as one segment of kind `response`."""
    max_thought_tokens: int = 1024
    max_answer_tokens: int = 512
    """Without a marker a response may have both limits' sum."""
    force_close: bool = False
    """Append the marker's tokens, not sampled, to a thought that meets its limit or EOS, and answer it."""


class Engine(Protocol):
    """Derive from it: what an engine has no use for does nothing. What it can do, its section of the config says."""

    def grow(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        """Add the thoughts and answers (or responses) of every limb to its tree, in order of k and m."""

    def sync(self, model: Any) -> None:
        """Take the policy's present weights."""

    def rest(self) -> None:
        """Free what an update can use; nothing is sampled until the next `sync`."""
        return None

    def close(self) -> None:
        """Leave nothing running; may be called twice."""
        return None

    def metrics(self) -> dict[str, float]:
        """What there is to log of the engine itself since this was last asked."""
        return {}
