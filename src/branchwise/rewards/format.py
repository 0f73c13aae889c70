"""The built-in reward for form: a thought and an answer, each in its tags, in order, once, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from branchwise.rewards.response import texts


def format(
    completions: Sequence[Any], tags: Sequence[str] = ("think", "answer"), opened: bool = False, **_: Any
) -> list[float]:
    """1 where a response is `<think>…</think><answer>…</answer>`, else 0.

    Each part has some text, holds none of the tags, and only white space stands around the parts.

    Args:
        completions: whole responses, as texts or as messages.
        tags: names of the tags, in order.
        opened: the prompt ends in the first opening tag, so that responses begin inside it.
    """
    return [explain(text, tags, opened)[0] for text in texts(completions)]


def explain(text: str, tags: Sequence[str] = ("think", "answer"), opened: bool = False) -> tuple[float, str]:
    """The reward of one whole response, and the reason for it."""
    text = f"<{tags[0]}>{text}" if opened else text
    for tag in tags:
        found = re.findall(rf"<\s*(?:/\s*)?{re.escape(tag)}\b[^<>]*>", text, re.IGNORECASE)
        for mark in (f"<{tag}>", f"</{tag}>"):
            if found.count(mark) != 1:
                return 0.0, f"{mark} occurs {found.count(mark)} times, not once"
        if len(found) > 2:
            return 0.0, f"more tags than <{tag}> and </{tag}>: {' '.join(found[:10])}"
    parts = re.fullmatch(r"\s*".join(["", *(f"<{tag}>(.*)</{tag}>" for tag in tags), ""]), text, re.DOTALL)
    if parts is None:
        return 0.0, "tags out of order, or text outside them"
    for tag, part in zip(tags, parts.groups()):
        if not any(sign.isprintable() and not sign.isspace() for sign in part):
            return 0.0, f"<{tag}> is empty"
    return 1.0, "well-formed"
