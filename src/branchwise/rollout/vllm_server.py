"""Trees from vLLM servers: requests spread over them, servers that fail dropped, and taken back when they are well."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import torch

from branchwise.config_engine import VllmServerConfig
from branchwise.errors import WorkStopped
from branchwise.rollout import export
from branchwise.rollout.engine import Engine, Limb, Sampling
from branchwise.rollout.server import Server, ServerFault
from branchwise.rollout.stages import BadCompletion, Completion, Request, Stages, Stretch, plant
from branchwise.rollout.transfer import make_transfer

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK = 1.0
"""Seconds between two looks at the servers."""
HEALTH = 30.0
"""Seconds within which a server that is well answers /health, however busy."""


class NoServer(WorkStopped):
    """No server has been left for longer than `engine.patience`."""


class VllmServers(Engine):
    """Samples with one or several vLLM servers.

    Everything runs in an event loop in a thread of its own, so that it can be called from any thread, and so that
    servers are looked after between calls, too.

    Args:
        policy: the model in training, peft-wrapped or not; its weights are sent at once.
        tokenizer: the model's.
        settings: the config's `engine`.
        folder: for weights sent by file.
        dtype: of the servers' weights.
        stop: every id that ends a turn.
        room: sequences that a server is given at once.
        still: whether the policy's weights stay as they are from one `sync` to the next.

    Raises:
        NoServer: none has answered in time.
        ConfigError: a server was started in a way that cannot be used.
    """

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        *,
        settings: VllmServerConfig,
        folder: str,
        dtype: torch.dtype,
        stop: frozenset[int],
        room: int,
        still: bool = True,
    ) -> None:
        self.settings = settings
        base = policy.get_base_model() if export.is_adapted(policy) else policy
        vocabulary = base.config.get_text_config(decoder=True).vocab_size
        self.stages = Stages(tokenizer, vocabulary, stop, positions=0)
        self.transfer = make_transfer(policy, settings, folder, dtype, still)
        self.dtype, self.version = dtype, 0
        self.run = f"{os.getpid()}-{time.time_ns():x}"
        self.counts: Counter[str] = Counter()
        self._warned = self._closed = False
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="vllm servers", daemon=True)
        self.thread.start()
        self.servers: list[Server] = self._run(self._open(room))
        try:
            self.sync(policy)
        except BaseException:
            self.close()
            raise

    def grow(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        """Add the thoughts and answers (or responses) of every limb to its tree, in order of k and m.

        Trees are changed once all limbs are sampled: after an error they are as before.

        Raises:
            ConfigError: what no engine can grow (`Stages.check`).
            NoServer: no server has been left for longer than `engine.patience`.
            ConfigError: a server refuses a request.
        """
        self.stages.check(limbs, sampling)
        planned = self.stages.plan(limbs, sampling)
        grown = self._run(_all([self._limb(limb, request, sampling) for limb, request in planned]))
        for (limb, _), thoughts in zip(planned, grown):
            plant(limb, thoughts)

    def sync(self, model: Any) -> None:
        """Send the policy's present weights to every server; one that does not take them is dropped."""
        self.transfer.stage(model)
        self.version += 1  # a server that is just being brought back with older weights is given these, too
        self._run(self._send_weights())
        rounding = self.transfer.rounding
        if rounding.share >= export.ROUNDING_TOLD and not self._warned:
            self._warned = True
            log.warning(export.rounding_message(rounding, self.dtype))

    def metrics(self) -> dict[str, float]:
        """Servers at work, and since the last call the faults and the requests sent once more."""
        counts, self.counts = self.counts, Counter()
        ready = sum(server.ready for server in self.servers)
        return {"servers": ready, "server_faults": counts["faults"], "server_retries": counts["retries"]}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
        self.transfer.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in the engine's loop; an interrupt of this thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _open(self, room: int) -> list[Server]:
        self.changed = asyncio.Condition()
        s = self.settings
        servers = [Server(url, s.api_key, s.timeout, room, self.stages.stop) for url in s.urls]
        self.watch: list[asyncio.Task[None]] = []
        return servers

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for server in self.servers:
            await server.close()

    # sampling

    async def _limb(self, limb: Limb, request: Request, sampling: Sampling) -> list[Stretch]:
        """Thoughts with their answers, the answers where the prompt is already cached."""
        completions, home = await self._complete(request, sampling, None)
        thoughts = self.stages.thoughts(request, completions, sampling)
        closed = [thought for thought in thoughts if thought.closed]
        drawn = await _all([self._complete(self.stages.second(limb, t, sampling), sampling, home) for t in closed])
        for thought, (answers, _) in zip(closed, drawn):
            thought.answers = self.stages.answers(answers, sampling)
        return thoughts

    async def _complete(
        self, request: Request, sampling: Sampling, home: Server | None
    ) -> tuple[list[Completion], Server]:
        """Completions and who gave them; those that stopped at no marker go on."""
        completions, home = await self._ask(request, sampling, home)
        done = list(completions)
        for i in range(len(done)):
            while rest := self.stages.rest_of(request, done[i], i):
                more, home = await self._ask(rest, sampling, home)
                done[i] = done[i].followed_by(more[0])
        return done, home

    async def _ask(
        self, request: Request, sampling: Sampling, home: Server | None
    ) -> tuple[Sequence[Completion], Server]:
        """Ask one server after the other until one gives what was asked for."""
        attempts = 3 + 2 * len(self.servers)
        for attempt in range(attempts):
            server = await self._seat(request, home)
            try:
                if server is not home:
                    await self._same_weights(server)
                answer = server.complete(request, sampling, self.transfer.model)
                completions = self.stages.checked(request, await _unless_lost(server, answer), sampling)
                server.failures = 0
                return completions, server
            except (ServerFault, BadCompletion) as fault:
                await self._drop(server, str(fault))
                self.counts["retries"] += 1
                log.warning("a request of %d completions is sent once more (attempt %d)", request.count, attempt + 2)
            finally:
                await self._leave(server, request)
        raise NoServer(
            f"engine.urls: a request failed {attempts} times; last on {server.url}: {server.reason}. "
            "See the servers' own logs"
        )

    async def _seat(self, request: Request, home: Server | None) -> Server:
        """A server with room for a request: where its beginning is cached, or the least busy one."""
        deadline = None
        async with self.changed:
            while True:
                ready = [server for server in self.servers if server.ready]
                free = [s for s in ready if not s.busy or s.busy + request.count <= s.room]
                if free:
                    server = home if home in free else min(free, key=lambda s: s.busy)
                    assert server is not None
                    server.busy += request.count
                    return server
                deadline = None if ready else deadline or time.monotonic() + self.settings.patience
                await self._wait(deadline)

    async def _leave(self, server: Server, request: Request) -> None:
        async with self.changed:
            server.busy -= request.count
            self.changed.notify_all()

    async def _wait(self, deadline: float | None) -> None:
        """Wait for a change of the servers' states, `changed` being held."""
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self.changed.wait()
        except TimeoutError:
            reasons = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
            raise NoServer(
                f"engine.urls: no server for {self.settings.patience:g} s ({reasons}); start them with "
                "`branchwise serve CONFIG.yaml`, or raise engine.patience"
            ) from None

    # servers that go and come

    async def _drop(self, server: Server, reason: str) -> None:
        """Leave a server out; the many requests that it fails at once are one fault."""
        async with self.changed:
            if server.ready:
                self._leave_out(server, reason)
            self.changed.notify_all()

    def _leave_out(self, server: Server, reason: str) -> None:
        self.counts["faults"] += server.ready
        if server.ready or not server.failures:
            log.warning("server %s is left out: %s", server.url, reason)
        server.drop(reason)

    async def _send_weights(self) -> None:
        """The staged weights to all servers at once; then wait until one has them.

        Those that are left out are not waited for: they get the weights when they are well again.
        """
        self.watch = self.watch or [asyncio.create_task(self._look_after(server)) for server in self.servers]
        known = [s for s in self.servers if s.ready or not s.failures or not self.transfer.replayable]
        for error in await asyncio.gather(*(self._bring(s) for s in known), return_exceptions=True):
            if error is not None:
                raise error
        deadline = time.monotonic() + self.settings.patience
        async with self.changed:
            while not any(server.ready for server in self.servers):
                await self._wait(deadline)
        self.stages.positions = min(server.positions for server in self.servers if server.positions)

    async def _bring(self, server: Server) -> None:
        """Give a server the staged weights, and use it from then on."""
        async with server.lock:
            name = self._name
            try:
                async with asyncio.timeout(self.settings.timeout):
                    gift = self._give_weights(server, name)
                    await (_unless_lost(server, gift) if server.ready else gift)
            except (ServerFault, TimeoutError) as fault:
                self._leave_out(server, str(fault) or f"it took no weights within {self.settings.timeout:g} s")
                return
        async with self.changed:
            if name == self._name and not server.ready:
                if server.failures:
                    log.warning("server %s is back, with the present weights", server.url)
                server.ready, server.lost = True, asyncio.Event()
            self.changed.notify_all()

    async def _give_weights(self, server: Server, name: str) -> None:
        if not server.life:
            await server.connect()
        await self.transfer.push(server)
        answer = await server.post("/reset_prefix_cache")
        if not (isinstance(answer, dict) and answer.get("success")):
            raise ServerFault("it kept its prefix cache, which is of the old weights")
        await server.post("/update_weight_version", {"new_version": name})

    @property
    def _name(self) -> str:
        return f"{self.run}-{self.version}"

    async def _same_weights(self, server: Server) -> None:
        """A server that was started anew within a moment would answer with its first weights."""
        version = (await server.get("/weight_info", HEALTH)).get("weight_version")
        if version != self._name:
            raise ServerFault(f"it holds weights {version!r} instead of {self._name!r}: it was started anew")

    async def _look_after(self, server: Server) -> None:
        """Notice when a server hangs, and bring it back when it is well again."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                if server.ready:
                    await server.get("/health", min(HEALTH, self.settings.timeout))
                elif time.monotonic() >= server.retry_at and self.transfer.replayable:
                    await self._bring(server)
            except ServerFault as fault:
                await self._drop(server, str(fault))
            except Exception as error:  # whatever it is, the server is still to be looked after
                self._leave_out(server, f"{type(error).__name__}: {error}")


async def _unless_lost(server: Server, answer: Coroutine[Any, Any, T]) -> T:
    """The server's answer, unless it is dropped meanwhile."""
    task, lost = asyncio.ensure_future(answer), asyncio.ensure_future(server.lost.wait())
    try:
        await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ServerFault(server.reason)
    finally:
        task.cancel()
        lost.cancel()


async def _all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; an error of one ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
