"""Settings of rephrasing, in a training config and on the command line alike."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["wording", "format", "order", "variables"]


class RephraseConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)

    writer: str = "rules"
    """Who writes: `rules` (no model), `openai:MODEL` (any OpenAI-compatible endpoint), `local:MODEL` (in process), or
    in a training run `policy` (the model that is trained, before its first step)."""
    base_url: str | None = None
    """The endpoint of `openai:` writers, such as http://localhost:8000/v1; default: OpenAI's."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; endpoints of one's own need none."""
    kinds: list[Kind] = Field(["wording", "format", "order"], min_length=1)
    """What changes, rephrasing by rephrasing in turn; a kind named twice comes twice as often. `variables` is off:
    under anchor `original` a response's letters would not be the prompt's."""
    prompts: str | None = None
    """A folder whose files (wording.txt, format.txt, order.txt, variables.txt, judge.txt, solve.txt) replace the
    shipped ones."""
    attempts: int = Field(3, ge=1)
    """Times a rephrasing is asked for until one passes the checks."""
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(1024, ge=1)
    """Of one reply."""
    seed: int = 0
    request: dict[str, Any] = {}
    """Further fields of each request to an endpoint, such as {chat_template_kwargs: {enable_thinking: false}}."""
    skip_checks: list[str] = []
    """Checks that are switched off, by name (rephrase/checks.py)."""
    judge: str | None = None
    """A further check: a model, named as `writer` is, says whether both ask the same."""
    solver: str | None = None
    """A further check: a model, named as `writer` is, finds the reference answer about as often from both."""
    solver_samples: int = Field(4, ge=1)
    solver_gap: float = Field(0.5, ge=0, le=1)
    """The largest difference of the two rates of success."""
    concurrency: int = Field(16, ge=1)
    """Requests under way at once, at most."""
    retries: int = Field(6, ge=0)
    """Of one request, after a rate limit, an overloaded or unreachable server, a timeout or a malformed body."""
    timeout: float = Field(120.0, gt=0)
    """Seconds a request may take."""
    max_wait: float = Field(300.0, gt=0)
    """Seconds; a server that asks for a longer wait ends the work."""
    budget_requests: int | None = Field(None, ge=0)
    """The work stops before it sends more requests than these, replies of earlier runs included."""
    budget_tokens: int | None = Field(None, ge=0)
    budget_cost: float | None = Field(None, ge=0)
    """In the prices' currency."""
    price_in: float | None = Field(None, ge=0)
    """Per million prompt tokens; default: the table in rephrase/cost.py."""
    price_out: float | None = Field(None, ge=0)
    """Per million reply tokens."""
    cache: str | None = None
    """Folder of the store, records and rejections in a training run; default: train.output_dir with
    -rephrase after it."""
