"""Throughput of the reward for programs, a part of rewards.py.

Programs a second on two at a time, each in a sandbox of its own: scripts that read standard input, and functions under
tests (which take a second sandbox). Every program is another one, and half of them are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WORKERS = 2
BATCH = 32

Row = dict[str, Any]


def programs(seconds: float) -> dict[str, Any]:
    """Programs a second, by kind of task."""
    return {f"{kind}_per_second": round(_rate(make, seconds), 1) for kind, make in KINDS.items()}


def _rate(make: Callable[[int], Row], seconds: float) -> float:
    from branchwise.rewards.code import grade_code

    grade_code([make(0)], workers=WORKERS)  # looks for the sandbox once
    graded, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        rows = [make(graded + i) for i in range(BATCH)]
        paid = [reward for reward, _ in grade_code(rows, workers=WORKERS)]
        assert paid == [float(i % 2 == 0) for i in range(BATCH)], paid
        graded += BATCH
    return graded / (time.perf_counter() - start)


def _script(i: int) -> Row:
    right = i % 2 == 0
    return {
        "output": f"```python\na, b = map(int, input().split())\nprint(a * b + {i if right else i + 1})\n```",
        "inputs": ["3 4\n"],
        "outputs": [f"{12 + i}\n"],
    }


def _function(i: int) -> Row:
    right = i % 2 == 0
    return {
        "prompt": f'def shifted(values):\n    """Each value plus {i}."""\n',
        "output": f"    return [value + {i if right else i + 1} for value in values]\n",
        "entry_point": "shifted",
        "test": "def check(candidate):\n"
        + "".join(f"    assert candidate([{k}, 1]) == [{k + i}, {1 + i}]\n" for k in range(8)),
    }


KINDS: dict[str, Callable[[int], Row]] = {"script": _script, "function": _function}
