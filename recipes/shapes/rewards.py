"""The reward of a problem: the built-in one of its task."""

from __future__ import annotations

from typing import Any

from branchwise.rewards.box import box
from branchwise.rewards.choice import choice
from branchwise.rewards.count import count
from branchwise.rewards.trajectory import trajectory

OF_TASK = {"count": count, "colour": choice, "position": choice, "box": box, "path": trajectory}
COLUMNS = ("completions", "answers", "answer", "choices", "width", "height")


def by_task(task: list[str], log_metric: Any = None, **columns: Any) -> list[float | None]:
    """Pay each response as the built-in reward of its column `task` does, and log each task's mean."""
    rewards: list[float | None] = [None] * len(task)
    for name, reward in OF_TASK.items():
        places = [i for i, other in enumerate(task) if other == name]
        own = {key: [columns[key][i] for i in places] for key in COLUMNS if key in columns}
        for i, paid in zip(places, reward(**own)):
            rewards[i] = paid
        if places and log_metric is not None:
            log_metric(f"reward_{name}", sum(rewards[i] or 0.0 for i in places) / len(places))
    return rewards
