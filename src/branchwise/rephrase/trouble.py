"""What went wrong with a request, and what it means: try again, leave this one, or stop the work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

_QUOTA = ("insufficient_quota", "billing", "exceeded your current quota", "credit balance", "insufficient_funds")
_PASSING = (408, 409, 425, 429)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One failed request."""

    way: Literal["again", "leave", "stop"]
    reason: str
    limited: bool = False
    """The server asks for fewer requests."""
    wait: float | None = None
    """Seconds that it asks to wait; None where it names none that can be read."""


def of_status(status: int, body: Any, retry_after: str | None) -> Trouble:
    """What an HTTP status with its body means."""
    said = _message(body)
    reason = f"{status}: {said}" if said else f"HTTP status {status}"
    told = f"{said} {_code(body)}".lower()
    if status == 402 or (status in (403, 429) and any(mark in told for mark in _QUOTA)):
        return Trouble("stop", f"the quota is spent, or there is no credit left ({reason})")
    if status in (401, 403):
        return Trouble("stop", f"the endpoint refuses the key ({reason}); see rephrase.api_key_env")
    if status == 404:
        return Trouble("stop", f"no such model or address ({reason}); see rephrase.writer and rephrase.base_url")
    if status in _PASSING or status >= 500:
        wait = read_retry_after(retry_after)
        return Trouble("again", reason, limited=status == 429 or (status in (503, 529) and wait is not None), wait=wait)
    return Trouble("leave", f"the endpoint refuses the request ({reason})")


def of_body(body: Any) -> Trouble:
    """What a body with status 200 means that holds no reply."""
    if isinstance(body, dict) and body.get("error"):
        status = body["error"].get("code") if isinstance(body["error"], dict) else None
        return of_status(status if isinstance(status, int) and status >= 400 else 500, body, None)
    return Trouble("again", f"the reply's body is not a chat completion: {str(body)[:80]!r}")


def read_retry_after(value: str | None) -> float | None:
    """Seconds, from the header's number or HTTP date (RFC 9110, 10.2.3); None where it is neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if seconds == seconds and seconds != float("inf") else None


def _error(body: Any) -> Any:
    return body.get("error", body) if isinstance(body, dict) else body


def _message(body: Any) -> str:
    error = _error(body)
    text = error.get("message") or error.get("detail") or "" if isinstance(error, dict) else error or ""
    return " ".join(str(text).split())[:200]


def _code(body: Any) -> str:
    error = _error(body)
    return f"{error.get('code')} {error.get('type')}" if isinstance(error, dict) else ""
