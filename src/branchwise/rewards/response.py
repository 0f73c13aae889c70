"""The texts that graders read of responses, in the trainer's form and in TRL's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TAG = re.compile(
    r"[<\[◁](?P<closing>/)?(?:seed:)?(?:think|thinking|thought|reasoning|scratchpad)\s*[>\]▷]"
    r"|<\|(?:begin|(?P<end>end))_of_thought\|>",
    re.IGNORECASE,
)
_OTHERS = ("system", "user", "tool")
"""Roles that are not the model's."""


def texts(completions: Sequence[Any]) -> list[str]:
    """Completions as texts; of messages (TRL's chat form), the model's own contents joined."""
    return [text if isinstance(text, str) else _joined(text) for text in completions]


def is_text(output: Any) -> bool:
    """Whether it is a completion: a text, or messages."""
    return isinstance(output, str) or (
        isinstance(output, list) and all(isinstance(part, dict) and "content" in part for part in output)
    )


def answer_texts(completions: Sequence[Any], answers: Sequence[str] | None) -> list[str]:
    """What follows the thoughts: `answers` where the trainer gives them, cut at think tags in any case."""
    return [after_thought(text) for text in (answers if answers is not None else texts(completions))]


def after_thought(text: str) -> str:
    """What follows the last closing think tag; '' where a thought is left open; the whole where there are no tags."""
    tags = list(_TAG.finditer(text))
    if not tags:
        return text
    return text[tags[-1].end() :] if tags[-1]["closing"] or tags[-1]["end"] else ""


def _joined(messages: Any) -> str:
    if not isinstance(messages, Sequence):
        return "" if messages is None else str(messages)
    own = (message for message in messages if isinstance(message, dict) and message.get("role") not in _OTHERS)
    contents = [message.get("content") for message in own]
    return "\n".join(content_text(content) for content in contents)


def content_text(content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
