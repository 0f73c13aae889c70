"""vLLM in the trainer's own process: two stages of completions, weights handed over in memory."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from branchwise.config_engine import VllmConfig
from branchwise.errors import ConfigError
from branchwise.rollout import export
from branchwise.rollout.engine import Engine, Limb, Sampling
from branchwise.rollout.stages import Completion, Request, Stages, plant

log = logging.getLogger(__name__)

ADAPTER = 1
"""vLLM's number for the one adapter there is."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes that vLLM has adapter slots in."""


class VllmEngine(Engine):
    """Samples with vLLM's `LLM` in this process.

    Args:
        policy: the model in training, peft-wrapped or not; its weights are taken at once.
        tokenizer: the model's.
        settings: the config's `engine`.
        dtype: of vLLM's weights and arithmetic.
        positions: the most tokens of a prompt and its response.
        max_rows: the most sequences decoded at once.
        kv_bytes: of its key-value cache on a CPU; None: vLLM's choice.
        stop: every id that ends a turn.

    Raises:
        ConfigError: vLLM is not installed, or cannot hold the policy.
    """

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        *,
        settings: VllmConfig,
        dtype: torch.dtype,
        positions: int,
        max_rows: int,
        kv_bytes: float | None,
        stop: frozenset[int],
    ) -> None:
        self.settings, self.dtype = settings, dtype
        base = policy.get_base_model() if export.is_adapted(policy) else policy
        if getattr(base, "is_quantized", False):
            raise ConfigError("engine: vllm cannot take quantized weights from the policy; set engine: transformers")
        text = base.config.get_text_config(decoder=True)
        positions = min(positions, getattr(text, "max_position_embeddings", None) or positions)
        self.stages = Stages(tokenizer, text.vocab_size, stop, positions)
        self.on_gpu = base.device.type == "cuda"
        self.resting = False
        self.beside = export.is_adapted(policy) and settings.lora == "adapter"
        options = self._options(positions, max_rows, kv_bytes) | (self._adapter_options(policy) if self.beside else {})
        with tempfile.TemporaryDirectory() as folder, _threads_kept():
            # vLLM reads a config and a tokenizer; weights come from the policy
            base.config.save_pretrained(folder)
            base.generation_config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            self.llm = _llm_class()(model=folder, **options)
        self._warned = False
        if self.beside:
            self._load(export.base_weights(policy))
        self.sync(policy)

    def grow(self, limbs: Sequence[Limb], sampling: Sampling) -> None:
        """Add the thoughts and answers (or responses) of every limb to its tree, in order of k and m.

        Raises:
            ConfigError: what no engine can grow (`Stages.check`).
            BadCompletion: vLLM gave what it cannot have sampled.
        """
        stages = self.stages
        stages.check(limbs, sampling)
        planned = stages.plan(limbs, sampling)
        drawn = self._complete([request for _, request in planned], sampling)
        thoughts_L = [
            stages.thoughts(request, completions, sampling) for (_, request), completions in zip(planned, drawn)
        ]
        closed = [(limb, t) for (limb, _), thoughts in zip(planned, thoughts_L) for t in thoughts if t.closed]
        answers = self._complete([stages.second(limb, t, sampling) for limb, t in closed], sampling)
        for (_, thought), completions in zip(closed, answers):
            thought.answers = stages.answers(completions, sampling)
        for (limb, _), thoughts in zip(planned, thoughts_L):
            plant(limb, thoughts)

    def sync(self, model: Any) -> None:
        """Take the policy's present weights, in memory, and forget what was cached of the old ones."""
        if self.resting:
            self.llm.wake_up()
            self.resting = False
            if self.beside:
                self._load(export.base_weights(model))  # sleeping threw them away
        if self.beside:
            self._take_adapter(model)
        else:
            rounding = export.Rounding()
            self._load(export.full_weights(model, self.dtype, rounding))
            self._tell(rounding)
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, which is of the old weights")

    def rest(self) -> None:
        """On a GPU: give weights and cache up for the time of the update."""
        if self.on_gpu and not self.resting:
            self.llm.sleep(level=2)
            self.resting = True

    def close(self) -> None:
        llm, self.llm = getattr(self, "llm", None), None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    def _complete(self, requests: list[Request], sampling: Sampling) -> list[list[Completion]]:
        """Completions of every request; those that stopped at no marker go on."""
        done = [list(c) for c in self._generate(requests, sampling)]
        while True:
            rests = {
                (r, i): rest
                for r, request in enumerate(requests)
                for i, completion in enumerate(done[r])
                if (rest := self.stages.rest_of(request, completion, i))
            }
            if not rests:
                return done
            for (r, i), more in zip(rests, self._generate(list(rests.values()), sampling)):
                done[r][i] = done[r][i].followed_by(more[0])

    def _generate(self, requests: list[Request], sampling: Sampling) -> list[Sequence[Completion]]:
        if not requests:
            return []
        outputs = self.llm.generate(
            [{"prompt_token_ids": request.prompt} for request in requests],
            [self._params(request, sampling) for request in requests],
            use_tqdm=False,
            lora_request=self._lora,
        )
        return [
            self.stages.checked(request, [_completion(o, request) for o in output.outputs], sampling)
            for request, output in zip(requests, outputs)
        ]

    def _params(self, request: Request, sampling: Sampling) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=1 if sampling.temperature == 0 else request.count,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=request.limit,
            logprobs=0,
            # the list is complete, so that no other EOS of vLLM's choice ends a node
            ignore_eos=True,
            stop_token_ids=sorted(self.stages.stop),
            stop=[request.marker] if request.marker else None,
            include_stop_str_in_output=True,
            detokenize=request.marker is not None,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )

    def _options(self, positions: int, max_rows: int, kv_bytes: float | None) -> dict[str, Any]:
        where: dict[str, Any] = (
            {"gpu_memory_utilization": self.settings.gpu_memory, "enable_sleep_mode": True}
            if self.on_gpu
            else {"kv_cache_memory_bytes": None if kv_bytes is None else int(kv_bytes)}
        )
        return where | {
            "dtype": str(self.dtype).removeprefix("torch."),
            "load_format": "dummy",
            # on CPUs vLLM packs a tied head once and never again: an untied one follows every update
            "hf_overrides": {} if self.on_gpu else {"tie_word_embeddings": False},
            "enforce_eager": self.settings.eager,
            "distributed_executor_backend": "uni",
            "max_model_len": positions,
            "max_num_seqs": max_rows,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enable_prefix_caching": True,
            # a prompt cut in two sets its generator back, which a CPU's cannot be
            "enable_chunked_prefill": self.on_gpu,
            "disable_log_stats": True,
        }

    def _adapter_options(self, policy: Any) -> dict[str, Any]:
        _, config = export.adapter(policy)
        rank = max([config["r"], *config.get("rank_pattern", {}).values()])
        fitting = [size for size in RANKS if size >= rank]
        if not fitting:
            raise ConfigError(f"model.lora.r: vLLM holds adapters of rank {RANKS[-1]} at most, not {rank}; lower it")
        return {"enable_lora": True, "max_lora_rank": fitting[0], "max_loras": 1}

    def _load(self, weights: dict[str, torch.Tensor]) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})

    def _take_adapter(self, policy: Any) -> None:
        tensors, config = export.adapter(policy)
        self.llm.collective_rpc(_hold_adapter, args=(tensors, config))

    @property
    def _lora(self) -> Any:
        if not self.beside:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("policy", ADAPTER, "in memory")

    def _tell(self, rounding: export.Rounding) -> None:
        if rounding.share >= export.ROUNDING_TOLD and not self._warned:
            self._warned = True
            log.warning(export.rounding_message(rounding, self.dtype))


def _hold_adapter(worker: Any, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Run by the worker: put an adapter from memory where one from a file would be."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = worker.model_runner.lora_manager
    helper = PEFTHelper.from_dict(config)
    helper.validate_legal(manager.lora_config)
    mapper = getattr(manager._adapter_manager.model, "hf_to_vllm_mapper", None)
    lora = LoRAModel.from_lora_tensors(
        ADAPTER,
        {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()},
        helper,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        model_vocab_size=manager.vocab_size,
        weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
    )
    manager._adapter_manager.remove_adapter(ADAPTER)
    manager._adapter_manager.add_adapter(lora)
    manager._adapter_manager.activate_adapter(ADAPTER)


def _completion(output: Any, request: Request) -> Completion:
    ids = list(output.token_ids)
    logprobs = [entry[i].logprob for entry, i in zip(output.logprobs or [], ids)]
    return Completion(
        ids, logprobs, output.finish_reason, request.marker is not None and output.stop_reason == request.marker
    )


def _llm_class() -> Any:
    """vLLM's `LLM`, set up for one process.

    Raises:
        ConfigError: it is not installed.
    """
    # read when vLLM is imported; what the user set stays
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from vllm import LLM
    except ImportError as error:
        raise ConfigError(
            f"engine: 'vllm' needs the package vllm ({error}); pip install 'branchwise[vllm]', or set "
            "engine: transformers"
        ) from None
    return LLM


@contextmanager
def _threads_kept() -> Iterator[None]:
    """vLLM takes `torch.set_num_threads` away on CPUs; the trainer keeps it."""
    set_num_threads = torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
