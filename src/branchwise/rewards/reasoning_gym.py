"""The built-in reward for reasoning-gym's tasks: their own scorers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from branchwise.rewards.adapt import attempt
from branchwise.rewards.mathematics.extraction import last_box


def reasoning_gym(
    answers: list[str],
    question: list[str],
    answer: list[str],
    metadata: list[dict[str, Any]],
    reasoning_gym: list[dict[str, Any]],
    exact: bool = False,
    **_: Any,
) -> list[float | BaseException]:
    """What the task's `score_answer` pays, from 0 to 1.

    The answer is the last `\\boxed{}`, else the last `<answer>`, else the whole text after the marker.

    Args:
        answers: texts after the marker, '' for unclosed thoughts.
        question, answer, metadata, reasoning_gym: columns of the data source `reasoning_gym:TASK`.
        exact: pay 1 for the task's full score and 0 for less: many tasks pay a part for an answer that merely contains
            the right one.

    Returns:
        A score for each answer; where a scorer fails, its exception.
    """
    scores: list[float | BaseException] = []
    for text, asked, expected, about, source in zip(answers, question, answer, metadata, reasoning_gym):
        score = _scorer(source["task"], json.dumps(source["args"], sort_keys=True))
        entry = {"question": asked, "answer": expected, "metadata": about}
        result = attempt(score, _final_answer(text), entry)
        scores.append(float(result >= 1) if exact and not isinstance(result, BaseException) else result)
    return scores


def _final_answer(text: str) -> str:
    if box := last_box(text):
        return box
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (tagged[-1] if tagged else text).strip()


@lru_cache
def _scorer(task: str, args: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import create_dataset

    return create_dataset(task, **json.loads(args)).score_answer
