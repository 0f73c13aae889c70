"""Gradient spikes (GRPO-MA, arXiv 2509.24494): how far a gradient stands out of those before it."""

from __future__ import annotations

from collections import deque

WINDOW, LEAST, HIGH = 100, 10, 10.0


class SpikeScore:
    """GSS_t = ‖g_t‖ / mean of ‖g‖ over the previous 100 updates, undefined before 10; GSS@10: share of those above 10.

    Norms are those before clipping.
    """

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=WINDOW)
        self.scored = 0
        self.high = 0

    def add(self, norm: float) -> float | None:
        """GSS of an update with this gradient norm, or None; the norm then counts for those that follow."""
        mean = sum(self._before) / len(self._before) if self._before else 0.0
        score = norm / mean if len(self._before) >= LEAST and mean > 0 else None
        self._before.append(norm)
        if score is not None:
            self.scored += 1
            self.high += score > HIGH
        return score

    def step(self, norms: list[float]) -> dict[str, float]:
        """Metrics of a step's updates: `gss` (its largest) and `gss_at_10` (of the run so far)."""
        scores = [score for norm in norms if (score := self.add(norm)) is not None]
        metrics = {"gss": max(scores)} if scores else {}
        if self.scored:
            metrics["gss_at_10"] = self.high / self.scored
        return metrics
