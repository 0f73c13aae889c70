"""One vLLM server over HTTP: ids in, ids and log-probs out, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import httpx2

from branchwise.config import ConfigError
from branchwise.rollout.engine import Sampling
from branchwise.rollout.stages import Completion, Request

PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first attempt to bring a server back, doubled from one to the next, and the most they become."""


class ServerFault(Exception):
    """A server that cannot be relied on: it is dropped, and its requests go elsewhere."""


class Server:
    """A vLLM server and what is known of it. Its coroutines all run in one event loop.

    Args:
        url: such as http://gpu1:8000.
        api_key: sent as a bearer token.
        timeout: seconds for a request.
        room: sequences that it is given at once.
        stop: every id that ends a turn.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float, room: int, stop: frozenset[int]) -> None:
        self.url, self.timeout, self.room, self.stop = url.rstrip("/"), timeout, room, sorted(stop)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        common: dict[str, Any] = {"base_url": self.url, "headers": headers, "timeout": timeout}
        self.http = httpx2.AsyncClient(limits=limits, **common)
        self.now = httpx2.Client(**common)
        self.ready = False
        self.busy = 0
        """Sequences it is working on."""
        self.model, self.positions = "", 0
        self.on_gpu = False
        self.life = ""
        """Differs from one connection to the next; empty while there is none."""
        self.failures = 0
        """Since it last answered a request."""
        self.retry_at = math.inf
        """When it may be brought back; of no use before it was left out."""
        self.reason = "it has not answered yet"
        self.lost = asyncio.Event()
        self.lock = asyncio.Lock()
        """Held while weights are pushed."""

    async def get(self, path: str, limit: float | None = None) -> Any:
        return await self._call("GET", path, None, limit)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await self._call("POST", path, body, None)

    def post_now(self, path: str, body: dict[str, Any]) -> None:
        """The same from a thread, for calls that wait for something this process does meanwhile."""
        try:
            self.now.post(path, json=body).raise_for_status()
        except httpx2.HTTPError as error:
            raise ServerFault(f"{path}: {_told(error)}") from None

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, limit: float | None) -> Any:
        try:
            async with asyncio.timeout(limit or self.timeout):
                response = await self.http.request(method, path, json=body)
        except TimeoutError:
            raise ServerFault(f"{path}: no answer within {limit or self.timeout:g} s") from None
        except httpx2.HTTPError as error:
            raise ServerFault(f"{path}: {_told(error)}") from None
        if response.status_code >= 400:
            _refused(self.url, path, response)
        try:
            return response.json() if response.content else None
        except ValueError:
            return response.text

    async def connect(self) -> None:
        """Learn what it serves.

        Raises:
            ServerFault: it does not answer.
            ConfigError: it serves what cannot be used.
        """
        await self.get("/health", min(10.0, self.timeout))
        try:
            card = (await self.get("/v1/models"))["data"][0]
            self.model, self.positions = card["id"], card["max_model_len"]
            info = await self.get("/server_info?config_format=json")
            mode = info["vllm_config"]["model_config"]["logprobs_mode"]
            self.on_gpu = str(info["system_env"]["is_cuda_available"]) == "True"
        except (KeyError, IndexError, TypeError) as error:
            raise ServerFault(f"it describes itself in a way that is not vLLM's: {error!r}") from None
        self.life = f"{time.time_ns():x}"
        if mode != "processed_logprobs":
            raise ConfigError(
                f"engine.urls: {self.url} gives {mode!r}, not log-probs of the sampling distribution; start it with "
                "`branchwise serve`, or with --logprobs-mode processed_logprobs"
            )

    async def refuse_tied_head(self) -> None:
        """On CPUs vLLM packs a tied output head once, and no reload reaches it; an untied one has its own weight."""
        if self.on_gpu:
            return
        digests = (await self.post("/weight_checker", {"action": "checksum"}))["checksums"]
        if not any("lm_head" in name for name in digests):
            raise ConfigError(
                f"engine.urls: {self.url} serves a model with a tied output head on a CPU, where vLLM would keep the "
                "old head after every update; start it with `branchwise serve`, which serves an untied copy"
            )

    async def complete(self, request: Request, sampling: Sampling, model: str | None) -> list[Completion]:
        """Completions of a request, in order.

        Raises:
            ServerFault: no answer, or one that is none.
        """
        body = _body(request, sampling) | {"model": model or self.model, "stop_token_ids": self.stop}
        answer = await self.post("/v1/completions", body)
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            return [_completion(choice, request) for choice in choices]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerFault(f"/v1/completions: an answer that cannot be read: {error!r}") from None

    def drop(self, reason: str) -> None:
        """Use it no more until it has come back; whoever waits for it is told."""
        self.ready, self.reason, self.life = False, reason, ""
        self.retry_at = time.monotonic() + min(LONGEST_PAUSE, PAUSE * 2.0 ** min(self.failures, 16))
        self.failures += 1
        self.lost.set()

    async def close(self) -> None:
        await self.http.aclose()
        self.now.close()


def _body(request: Request, sampling: Sampling) -> dict[str, Any]:
    stop = {"stop": [request.marker]} if request.marker else {}
    return stop | {
        # `stop_token_ids` is complete, so that no other EOS of the server's choice ends a node
        "ignore_eos": True,
        "prompt": request.prompt,
        "n": 1 if sampling.temperature == 0 else request.count,
        "seed": request.seed,
        "max_tokens": request.limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "return_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def _completion(choice: dict[str, Any], request: Request) -> Completion:
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise ValueError(f"finish_reason {finish!r}")
    ids, logprobs = list(choice["token_ids"]), [float(p) for p in choice["logprobs"]["token_logprobs"]]
    return Completion(ids, logprobs, finish, request.marker is not None and choice.get("stop_reason") == request.marker)


def _refused(url: str, path: str, response: httpx2.Response) -> None:
    text = response.text[:300].strip()
    if response.status_code in (401, 403):
        raise ConfigError(f"engine.api_key: {url} refuses it ({response.status_code}); set the key it was started with")
    if response.status_code == 404 and path.split("?")[0] in ("/server_info", "/collective_rpc", "/weight_info"):
        raise ConfigError(
            f"engine.urls: {url} has no {path.split('?')[0]}; start it with `branchwise serve`, or with "
            "VLLM_SERVER_DEV_MODE=1 in its environment"
        )
    if response.status_code in (400, 422):
        raise ConfigError(f"engine.urls: {url} refuses {path}: {text}")
    raise ServerFault(f"{path}: {response.status_code} {text}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
