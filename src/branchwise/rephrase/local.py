"""A writer in process: a model of one's own, the policy itself among them, through Branchwise's engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from branchwise.config import Config, ConfigError
from branchwise.data.prompt import Renderer, renderer_of
from branchwise.rephrase.writer import GaveUp, Order, Reply
from branchwise.rollout.engine import Engine, Limb, Sampling
from branchwise.tree import Question, Tree, prompt_node

BATCH = 64
"""Orders sampled together at most."""
GATHER = 0.02
"""Seconds in which orders gather to a batch."""


class LocalWriter:
    """Samples replies with an engine, whatever orders are waiting at a time.

    A reply depends on its order alone: its random numbers are keyed by the order, not by the batch.

    Args:
        name: what orders call it.
        engine: samples responses.
        renderer: prompts to token ids; without a marker, since a reply is read whole.
        decode: token ids to text, special tokens left out.
    """

    stored = True

    def __init__(self, name: str, engine: Engine, renderer: Renderer, decode: Callable[[Any], str]) -> None:
        self.name, self.engine, self.renderer, self.decode = name, engine, renderer, decode
        self._waiting: list[tuple[Order, asyncio.Future[Reply]]] = []
        self._sampler: asyncio.Task[None] | None = None

    async def ask(self, order: Order, admit: Callable[[], None]) -> Reply:
        admit()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, future))
        if self._sampler is None or self._sampler.done():
            self._sampler = asyncio.create_task(self._sample())
        return await future

    async def _sample(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER)
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            same = [pair for pair in batch if pair[0].settings == batch[0][0].settings]
            self._waiting = [pair for pair in batch if pair not in same] + self._waiting
            try:
                replies = await asyncio.to_thread(self._grow, [order for order, _ in same])
            except (ValueError, FloatingPointError) as error:
                for _, future in same:
                    future.set_exception(GaveUp(str(error)))
                continue
            except Exception as error:  # such as memory that is out: whoever waits is told, not left waiting
                for _, future in same:
                    future.set_exception(error)
                continue
            for (_, future), reply in zip(same, replies):
                future.set_result(reply)

    def _grow(self, orders: list[Order]) -> list[Reply]:
        s = orders[0].settings
        sampling = Sampling(
            seed=s.seed,
            temperature=s.temperature,
            top_p=s.top_p,
            marker=None,
            max_thought_tokens=s.max_tokens,
            max_answer_tokens=0,
        )
        trees = [self._tree(order) for order in orders]
        self.engine.grow([Limb(tree, 0, 1, 1) for tree in trees], sampling)
        return [self._reply(tree) for tree in trees]

    def _tree(self, order: Order) -> Tree:
        prompt = [{"role": "user", "content": order.prompt}]
        tree = Tree(Question(order.key, (prompt,)), draw=int(order.key[:15], 16), step=0)
        tree.add(prompt_node(0, self.renderer.ids(prompt)))
        return tree

    def _reply(self, tree: Tree) -> Reply:
        prompt, node = tree.nodes
        finish = "length" if node.finish == "length" else "stop"
        return Reply(self.decode(node.ids_T), finish, len(prompt.ids_T), len(node.ids_T), self.name)

    async def stop(self) -> None:
        """What is being sampled is sampled to its end."""

    async def close(self) -> None:
        if self._sampler is not None:
            await self._sampler


def of_engine(name: str, engine: Engine, processing_class: Any, chat_template_kwargs: dict[str, Any]) -> LocalWriter:
    """A writer on an engine that is there, such as the trainer's."""
    renderer = renderer_of(processing_class, chat_template_kwargs)
    return LocalWriter(name, engine, renderer, lambda ids: renderer.tokenizer.decode(ids, skip_special_tokens=True))


def load_local(name: str, chat_template_kwargs: dict[str, Any]) -> LocalWriter:
    """Load `local:MODEL` as a policy is loaded, and put an engine on it.

    Raises:
        ConfigError: there is no such model, or the engine cannot sample with it.
    """
    import torch

    from branchwise.policy.load import load_policy
    from branchwise.rollout.transformers import TransformersEngine

    dtype = "bfloat16" if torch.cuda.is_available() else "auto"
    config = Config.model_validate({"model": {"path": name.partition(":")[2], "dtype": dtype}})
    try:
        policy = load_policy(config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"rephrase.writer: no model at {name!r}: {str(error).splitlines()[0]}") from None
    settings: dict[str, Any] = {"dtype": policy.precision, "device": policy.device, "max_rows": BATCH}
    engine = TransformersEngine(policy.model, policy.processing_class, **settings)
    return of_engine(name, engine, policy.processing_class, chat_template_kwargs)
