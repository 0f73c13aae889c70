"""What writes: an order goes in, a reply comes out. Endpoints, local models and rules are all writers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from branchwise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model samples; another setting is another request."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0
    request: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request."""


@dataclass(frozen=True, slots=True)
class Order:
    """One reply that is wanted."""

    model: str
    """The writer's name, such as `openai:gpt-4-turbo`."""
    prompt: str
    version: str
    """Of the prompt file."""
    sample: int
    """Which of the replies to this prompt; no two of a question share it."""
    settings: Settings = Settings()
    question: str = ""
    """The bare question, for writers that need no prompt."""
    kind: str = ""

    @property
    def key(self) -> str:
        """A digest of all that the reply depends on: what the store finds it by."""
        parts = (self.model, self.prompt, self.version, self.sample, asdict(self.settings))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def seed(self) -> int:
        """A seed of this reply's own, below 2**31."""
        return (self.settings.seed * 1_000_003 + self.sample) % 2**31


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    text: str | None
    finish: str | None
    """Why it ended: stop, length, content_filter, or what else the server says."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    served_by: str = ""
    """The model that the server says it used."""


class Writer(Protocol):
    name: str
    """What orders and records call it."""
    stored: bool
    """Whether its replies are worth keeping; rules write theirs anew."""

    async def ask(self, order: Order, admit: Callable[[], None]) -> Reply:
        """The reply to an order.

        Args:
            admit: to be called before each request is sent; raises Stopped where no more may be.

        Raises:
            Stopped: nothing further can be had.
            GaveUp: this reply cannot be had.
        """

    async def stop(self) -> None:
        """Wait for nothing any longer; what is under way may finish."""

    async def close(self) -> None:
        """Let go of connections."""


class Stopped(Exception):
    """The work cannot go on; its message says why. What is stored stays."""


class GaveUp(Exception):
    """One reply cannot be had; its message says why. Another run asks again."""


def split_name(name: str, key: str = "rephrase.writer") -> tuple[str, str]:
    """`openai:gpt-4-turbo` as (openai, gpt-4-turbo); `rules` and `policy` have no model.

    Raises:
        ConfigError: it names no writer.
    """
    way, _, model = name.partition(":")
    if (way in ("openai", "local") and model) or (way in ("rules", "policy") and not model):
        return way, model
    raise ConfigError(f"{key}: {name!r} is no writer; write openai:MODEL, local:MODEL, rules, or in a run policy")
