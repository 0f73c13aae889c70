"""`branchwise serve`: a vLLM server started the way that training needs it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from branchwise.config import Config, ConfigError
from branchwise.rollout.make import longest


def server_command(config: Config, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The command line of a config's server, and what to add to its environment.

    On a CPU an untied copy of a model with a tied head is written first: vLLM packs the head there, and only an untied
    one follows the policy.

    Raises:
        ConfigError: vLLM is not installed, or the config names no server.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("branchwise serve: needs the package vllm; pip install 'branchwise[vllm]'")
    engine = config.engine
    if engine.kind != "vllm_server":
        raise ConfigError(f"engine: {engine.kind!r} needs no server; set engine: {{kind: vllm_server, urls: [...]}}")
    import torch
    from transformers import AutoConfig

    gpu = torch.cuda.is_available()
    settings = AutoConfig.from_pretrained(config.model.path, revision=config.model.revision)
    text = settings.get_text_config(decoder=True)
    beside = config.model.lora is not None and engine.lora == "adapter"
    model = config.model.path
    if not gpu and not beside and getattr(text, "tie_word_embeddings", False):
        model = untied(config, Path(f"{config.train.output_dir}-untied"))
    positions = min(longest(config), getattr(text, "max_position_embeddings", None) or longest(config))
    arguments: dict[str, Any] = {
        "model": model,
        "host": host,
        "port": port,
        "dtype": _dtype(config, gpu),
        "max-model-len": positions,
        "max-num-seqs": config.sampling.max_rows,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
    }
    flags = ["--enable-prefix-caching"]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if config.model.trust_remote_code:
        flags.append("--trust-remote-code")
    if config.model.lora is not None and beside:
        arguments |= {"max-lora-rank": max(8, 1 << (config.model.lora.r - 1).bit_length()), "max-loras": 1}
        flags.append("--enable-lora")
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    elif gpu and engine.transfer != "file":
        arguments["weight-transfer-config"] = json.dumps({"backend": "nccl"})
    if not gpu:
        flags.append("--no-enable-chunked-prefill")  # as in process: a prompt cut in two sets its generator back
        gib = math.ceil((config.sampling.kv_memory_gb or 4.0) * 1e9 / 2**30)
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", str(gib))
    # the module, since the script `vllm` asks for a distribution of that name, which the CPU's is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
    return command + [part for name, value in arguments.items() for part in (f"--{name}", str(value))], environment


def untied(config: Config, folder: Path) -> str:
    """Write a copy of the model whose output head is a matrix of its own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"revision": config.model.revision, "trust_remote_code": config.model.trust_remote_code}
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype="auto", **place)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.get_text_config(decoder=True).tie_word_embeddings = False
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(config.model.path, **place).save_pretrained(folder)
    return str(folder)


def _dtype(config: Config, gpu: bool) -> str:
    """What the trainer samples in: `auto` is the training precision."""
    named = next((d for d in (config.sampling.dtype, config.train.precision) if d != "auto"), None)
    if named:
        return named
    import torch

    from branchwise.policy.load import pick_precision

    return str(pick_precision("auto", torch.device("cuda" if gpu else "cpu"))).removeprefix("torch.")
