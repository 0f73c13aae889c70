"""What a user sees while a run goes on: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MISMATCH_SHOWN = 0.05
"""Mean |log π − log μ| from which sampler and policy differ by more than rounding in bfloat16 explains."""


class _Shown(Console):
    """A run outlives whoever reads what it shows: control-C ends `| tee`, too, and the state is yet to be saved."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Shows reward, uniform share, tokens a second and time left."""

    def __init__(self, steps: int, quiet: bool = False) -> None:
        self.console = _Shown(quiet=quiet, highlight=False)
        self.steps = steps
        self.start = time.monotonic()
        self.live = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[line]}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            if self.console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
            self.task = self.live.add_task("training", total=self.steps, line="")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Show step `step` (from 1)."""
        line = " · ".join(_parts(metrics))
        if self.live:
            self.live.update(self.task, completed=step, line=line)
        else:
            left = (time.monotonic() - self.start) / step * (self.steps - step)
            self.say(f"step {step}/{self.steps} · {line} · {int(left) // 60}:{int(left) % 60:02d} left")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
        sys.stdout.flush()

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
        sys.stdout.flush()


def _parts(metrics: dict[str, Any]) -> list[str]:
    parts = [f"reward {metrics['reward']:.3f}" if "reward" in metrics else "no reward"]
    if "uniform/question" in metrics:
        parts.append(f"uniform {metrics['uniform/question']:.0%}")
    for key, label in (("unclosed", "unclosed"), ("missing_rewards", "missing"), ("idle_updates", "idle updates")):
        if value := metrics.get(key):
            parts.append(f"{label} {value:.0%}" if key == "unclosed" else f"{label} {value:.0f}")
    if metrics.get("mismatch", 0) >= MISMATCH_SHOWN:
        parts.append(f"mismatch {metrics['mismatch']:.2f}")
    if value := metrics.get("staleness"):
        parts.append(f"stale {value:.0f}")
    parts.append(f"{metrics['tokens_per_second']:.0f} tok/s")
    parts.append(f"{metrics['seconds']:.1f} s")
    return parts
