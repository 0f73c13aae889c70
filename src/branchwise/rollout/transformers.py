"""The in-process engine: a transformers model that grows trees by forking its key-value cache.

A prompt is forwarded once. Its row of the cache is forked to K thoughts; a thought that completes the marker is
forked on the spot to M answers, while the others go on. Rows that finish leave the batch, and thoughts that wait take
their place. All rows end at the same column of the cache, so that each step feeds every row its last token, at its own
position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from branchwise.errors import ConfigError
from branchwise.rollout.cache import ROOM
from branchwise.rollout.engine import Engine, Limb, Sampling
from branchwise.rollout.forking import Draft, Endings, Growth
from branchwise.rollout.keyed_random import node_key
from branchwise.rollout.marker import Marker
from branchwise.rollout.prefill import Prompt, common_beginning
from branchwise.rollout.seeing import decoder_of
from branchwise.rollout.weights import SamplingWeights
from branchwise.tree import Images


class TransformersEngine(Engine):
    """Samples with a transformers causal language model, in process.

    Args:
        model: the policy, peft-wrapped or not. It is used itself where it is of this dtype and on this device, else
            through a copy that `sync` brings up to date.
        processing_class: the model's tokenizer or processor.
        dtype: to sample in.
        device: to sample on.
        max_rows: the most sequences decoded at once.
        kv_bytes: the most that their keys and values may take; None: unbounded.

    Raises:
        ValueError: the model keeps a state between tokens that cannot be forked.
    """

    def __init__(
        self,
        model: Any,
        processing_class: Any,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        max_rows: int,
        kv_bytes: float | None = None,
    ) -> None:
        self.tokenizer = tokenizer = getattr(processing_class, "tokenizer", processing_class)
        self.max_rows, self.kv_bytes = max_rows, kv_bytes
        self.weights = SamplingWeights(model, dtype, torch.device(device))
        self.decoder = decoder_of(self.weights.model, processing_class)
        self.stop = stop_ids(self.weights.model, tokenizer)
        self._markers: dict[str, Marker] = {}
        self._placeholders = 0

    def sync(self, model: Any) -> None:
        """Take the policy's present weights, adapters merged."""
        self.weights.take(model)
        self.decoder.changed()

    def metrics(self) -> dict[str, float]:
        """For models that see: image placeholders among the tokens sampled, which are tokens like others there."""
        if self.decoder.placeholder is None:
            return {}
        count, self._placeholders = self._placeholders, 0
        return {"sampled_image_placeholders": count}

    @torch.no_grad()
    def grow(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        """Add the thoughts and answers (or responses) of every limb to its tree, in order of k and m.

        A phrasing that was grown before gets further thoughts. Each prompt is forwarded once, whatever the number of
        limbs it stands in, and so is the beginning common to all. A thought's finish is `marker` where its last token
        completes the marker, whatever else that token is. With `force_close` an EOS that was drawn stays in the
        thought, for it was drawn; the marker follows it.

        Raises:
            ConfigError: answers without a marker, or a thought's answers that outnumber `max_rows` or do not fit into
                `kv_bytes`.
            FloatingPointError: the logits are not finite.
        """
        self._check(limbs, sampling)
        plan = _plan(limbs, sampling)
        by_prompt: dict[tuple[bytes, Images | None], list[Draft]] = {}
        for limb, thoughts in plan:
            ids = limb.tree.nodes[limb.phrasing].ids_T.tobytes()
            by_prompt.setdefault((ids, limb.tree.images), []).extend(thoughts)
        prompts = [
            (Prompt(np.frombuffer(ids, np.int64), images), thoughts)
            for (ids, images), thoughts in by_prompt.items()
            if thoughts
        ]
        if not prompts:
            return
        endings = Endings.of(self.stop, self._marker(sampling.marker), self.decoder)
        with self.weights.in_use():
            beginning = common_beginning(self.decoder, [prompt for prompt, _ in prompts])
            Growth(self.decoder, prompts, beginning, sampling, endings, self._rows(prompts, sampling)).run()
        for limb, thoughts in plan:
            for thought in thoughts:
                self._placeholders += sum(
                    draft.count(self.decoder.placeholder) for draft in (thought, *thought.answers)
                )
                place = limb.tree.add(thought.node(limb.phrasing))
                for answer in thought.answers if thought.closed else []:
                    limb.tree.add(answer.node(place))

    def _rows(self, prompts: list[tuple[Prompt, list[Draft]]], sampling: Sampling) -> int:
        """The most rows at once, so that the cache stays within its budget though every row meets its limits.

        Raises:
            ConfigError: the budget does not hold one thought's answers.
        """
        if self.kv_bytes is None:
            return self.max_rows
        longest = max(len(prompt) for prompt, _ in prompts) + sampling.max_thought_tokens + sampling.max_answer_tokens
        row_bytes = self.decoder.bytes_per_token * (longest + 3 * ROOM)  # room to grow, and columns not yet dropped
        rows = int(self.kv_bytes // row_bytes) if row_bytes else self.max_rows
        needed = max(thought.leaves for _, thoughts in prompts for thought in thoughts)
        if rows < needed:
            raise ConfigError(
                f"sampling.kv_memory_gb: {self.kv_bytes / 1e9:.3g} holds {rows} sequences of up to {longest} tokens, "
                f"a thought's answers are {needed}; set {1.05 * needed * row_bytes / 1e9:.2g} or more, or lower "
                "sampling.max_thought_tokens or tree.answers"
            )
        return min(rows, self.max_rows)

    def _check(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        for limb in limbs:
            if sampling.marker is None and limb.answers > 1:
                raise ConfigError(
                    f"tree.answers: {limb.answers} answers from a thought need tree.marker, which ends it; it is null"
                )
            if limb.answers > self.max_rows:
                raise ConfigError(
                    f"sampling.max_rows: {self.max_rows} rows cannot hold a thought's tree.answers: {limb.answers}, "
                    f"which are sampled together; set sampling.max_rows to {limb.answers} or more"
                )
            prompt = len(limb.tree.nodes[limb.phrasing].ids_T)
            longest = prompt + sampling.max_thought_tokens + sampling.max_answer_tokens
            if not prompt:
                raise ConfigError(f"question {limb.tree.question.id!r}: phrasing {limb.phrasing} has no tokens")
            if self.decoder.positions is not None and longest > self.decoder.positions:
                raise ConfigError(
                    f"sampling.max_thought_tokens: a prompt of {prompt} tokens and responses of up to "
                    f"{longest - prompt} pass the model's {self.decoder.positions} positions; lower it, "
                    "sampling.max_answer_tokens or data.max_prompt_tokens"
                )

    def _marker(self, text: str | None) -> Marker | None:
        if text is None:
            return None
        if text not in self._markers:
            self._markers[text] = Marker(text, self.tokenizer, self.decoder.vocabulary)
        return self._markers[text]


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a turn: all of the generation config's, and the tokenizer's own."""
    stop: set[int] = set()
    for ids in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        stop.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(stop)


def _plan(limbs: Sequence[Limb], sampling: Sampling) -> list[tuple[Limb, list[Draft]]]:
    """The nodes to sample, with the keys of their random numbers."""
    grown: Counter[tuple[int, int]] = Counter()
    plan = []
    for limb in limbs:
        place = (id(limb.tree), limb.phrasing)
        first = len(limb.tree.children[limb.phrasing]) + grown[place]
        grown[place] += limb.thoughts
        plan.append((limb, [_thought(limb, k, sampling) for k in range(first, first + limb.thoughts)]))
    return plan


def _thought(limb: Limb, k: int, sampling: Sampling) -> Draft:
    tree = limb.tree
    path = (sampling.seed, tree.step, tree.draw, tree.nodes[limb.phrasing].index, k)
    if sampling.marker is None:
        return Draft("response", k, node_key(*path, -1), sampling.max_thought_tokens + sampling.max_answer_tokens)
    answers = [Draft("answer", m, node_key(*path, m), sampling.max_answer_tokens) for m in range(limb.answers)]
    return Draft("thought", k, node_key(*path, -1), sampling.max_thought_tokens, answers)
