"""A writer behind an OpenAI-compatible endpoint: OpenAI's own, vLLM, Ollama, llama.cpp and others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import urlsplit

from branchwise.config_rephrase import RephraseConfig
from branchwise.errors import ConfigError
from branchwise.rephrase.cost import count_tokens
from branchwise.rephrase.throttle import Throttle
from branchwise.rephrase.trouble import Trouble, of_body, of_status
from branchwise.rephrase.writer import GaveUp, Order, Reply, Stopped

LONGEST_BACKOFF = 60.0
"""Seconds between two tries where the server names no time."""
GIVEN_UP_IN_A_ROW = 3
"""So many requests given up with no reply between them: the host is down, and the work stops."""


class Endpoint:
    """Asks a chat-completions endpoint.

    Retries are its own, not the client's: that one caps Retry-After at a minute and lets each request wait for itself,
    so that a queue keeps hitting the limit.

    Args:
        name: `openai:MODEL`.
        config: address, key, concurrency, retries, timeout, longest wait.
        backoff: seconds before the second try; doubled for each one after.

    Raises:
        ConfigError: no key for OpenAI's own endpoint, or the package `openai` is missing.
    """

    stored = True

    def __init__(self, name: str, config: RephraseConfig, backoff: float = 1.0) -> None:
        try:
            import openai
        except ImportError:
            raise ConfigError(f"rephrase.writer: {name!r} needs openai; pip install 'branchwise[api]'") from None
        key = os.environ.get(config.api_key_env)
        if not key and config.base_url is None:
            raise ConfigError(
                f"rephrase.writer: {name!r} needs a key; set the environment variable {config.api_key_env}, "
                "or rephrase.base_url for an endpoint of your own"
            )
        if config.base_url is not None and not _is_address(config.base_url):
            raise ConfigError(f"rephrase.base_url: {config.base_url!r} is no address; write http://HOST:PORT/v1")
        self.name, self.config, self.backoff = name, config, backoff
        self.model = name.partition(":")[2]
        self.client = openai.AsyncOpenAI(
            api_key=key or "none", base_url=config.base_url, timeout=config.timeout, max_retries=0
        )
        self.random = Random()  # of waiting times alone: what is written does not depend on it
        self.throttle = Throttle(config.concurrency, self.random)
        self.replies = 0
        self.given_up = 0
        """In a row, without a reply between."""

    async def ask(self, order: Order, admit: Callable[[], None]) -> Reply:
        tries = refused = 0
        replies = self.replies
        while True:
            sent, outcome = await self._enter_and_send(order, admit)
            if isinstance(outcome, Reply):
                self.given_up, self.replies = 0, self.replies + 1
                return outcome
            trouble, wait = outcome, self._wait(outcome, tries + refused)
            if not trouble.limited:
                tries += 1
            elif self.replies > replies:  # a limit that lets others through is no failure of this request
                refused, replies = 0, self.replies
            else:
                refused += 1
            if trouble.way == "leave" or tries + refused > self.config.retries:
                break
            if trouble.limited:
                self.throttle.limited(wait, sent)
            else:
                await self.throttle.pause(wait)
        # a question that is refused tells nothing of others, once any was answered
        self.given_up += trouble.way != "leave" or self.replies == 0
        often = f" after {tries + refused} tries" if tries + refused > 1 else ""
        if self.given_up >= GIVEN_UP_IN_A_ROW:
            raise Stopped(f"{self.given_up} requests in a row brought no reply{often}; the last: {trouble.reason}")
        raise GaveUp(f"given up{often}: {trouble.reason}")

    async def _enter_and_send(self, order: Order, admit: Callable[[], None]) -> tuple[float, Reply | Trouble]:
        """When the request was sent (monotonic seconds), and what came of it."""
        await self.throttle.enter()
        sent, outcome = time.monotonic(), None
        try:
            admit()
            outcome = await self._send(order)
            return sent, outcome
        finally:
            await self.throttle.leave(isinstance(outcome, Reply))

    def _wait(self, trouble: Trouble, attempt: int) -> float:
        """Seconds until the next try: what the server asks for, or exponential back-off with jitter.

        Raises:
            Stopped: the trouble is one that stays, or the server asks for a longer wait than is allowed.
        """
        if trouble.way == "stop":
            raise Stopped(trouble.reason)
        if not trouble.wait:
            return min(LONGEST_BACKOFF, self.backoff * 2**attempt) * self.random.uniform(0.75, 1.25)
        if trouble.wait > self.config.max_wait:
            raise Stopped(
                f"the server asks to wait {trouble.wait:.0f} s (Retry-After), and rephrase.max_wait is "
                f"{self.config.max_wait:.0f} s; run again later ({trouble.reason})"
            )
        return trouble.wait + self.random.uniform(0, min(0.25, self.backoff))

    async def _send(self, order: Order) -> Reply | Trouble:
        import openai

        s = order.settings
        fields = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens, "seed": order.seed}
        try:
            raw = await self.client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=[{"role": "user", "content": order.prompt}],
                extra_body={**fields, **s.request},
            )
            return read_completion(raw.text, order.prompt)
        except openai.APIStatusError as error:
            return of_status(error.status_code, error.body, error.response.headers.get("retry-after"))
        except openai.APITimeoutError:
            return Trouble("again", f"no reply within {self.config.timeout:.0f} s (rephrase.timeout)")
        except openai.APIConnectionError as error:
            return Trouble("again", f"no connection to {self.client.base_url}: {error.__cause__ or error}")

    async def stop(self) -> None:
        await self.throttle.stop()

    async def close(self) -> None:
        await self.client.close()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or a bracket
        return False


def read_completion(body: str, prompt: str = "") -> Reply | Trouble:
    """The reply in a chat completion's body; what is wrong with it where there is none.

    A server that counts no tokens has them estimated, so that budgets hold.
    """
    parsed = _parsed_or_text(body)
    try:
        choice = parsed["choices"][0]
        content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
    except (LookupError, TypeError, AttributeError):
        return of_body(parsed)
    if isinstance(content, list):  # parts, as messages to a model may be
        content = "".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    if not isinstance(content, str | None):
        return of_body(parsed)
    refused = bool(refusal) and not content
    text = content or (str(refusal) if refused else None)
    text = text and text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no store holds half a pair
    usage = parsed.get("usage")
    asked, replied = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
    finish = "refusal" if refused else str(choice.get("finish_reason") or "") or None
    model = str(parsed.get("model") or "")
    return Reply(text, finish, asked or count_tokens(prompt), replied or count_tokens(text or ""), model)


def _count(usage: Any, name: str) -> int:
    """Tokens that the server counted; 0 where it counted none, or what it says is no count."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _parsed_or_text(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
