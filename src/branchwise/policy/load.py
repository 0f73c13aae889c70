"""From a config to a policy: weights, adapter, precision, device, and the attention that is exact for the model."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from branchwise.config import Config, ConfigError, LoraConfig, ModelConfig
from branchwise.policy.output import find_output
from branchwise.policy.policy import Policy
from branchwise.policy.sharing import backbone_of, choose_sharing
from branchwise.policy.sight import check_sight
from branchwise.policy.vision import eyes, inputs_of


def load_policy(config: Config, *, model: Any = None, processing_class: Any = None, peft_config: Any = None) -> Policy:
    """Load what is trained, ready to score packs.

    Args:
        model: a transformers or peft model in place of `model.path`; it keeps the type of its weights.
        processing_class: a tokenizer or processor in place of the model's own.
        peft_config: peft's config of an adapter in place of `model.lora`.

    Raises:
        ConfigError: there is no such model or device, bitsandbytes is missing, the adapter adds tokens to prompts, or
            the model sees in a way that is not known here.
    """
    m = config.model
    device = pick_device(config.train.device)
    peft_config = peft_config or (_lora(m.lora) if m.lora else None)
    if peft_config is not None and peft_config.is_prompt_learning:
        raise ConfigError(
            f"peft_config: {peft_config.peft_type} adds tokens to every row, which trees share; use a LoraConfig"
        )
    precision = pick_precision(config.train.precision, device)
    held = torch.float32 if peft_config is None else precision
    model = load_weights(m, device, held) if model is None else model.to(device)
    if processing_class is None:
        processing_class = load_processing(m)
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if m.freeze_vision:
        _freeze_vision(model, peft_config)
    if peft_config is not None:
        if getattr(model, "is_quantized", False):
            model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = peft.get_peft_model(model, peft_config)
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    _settle(model, base, m.gradient_checkpointing)
    policy = Policy(
        model,
        processing_class,
        sharing=choose_sharing(base),
        output=find_output(base),
        inputs=inputs_of(base, processing_class),
        temperature=config.sampling.temperature,
        chunk=config.train.logit_chunk,
        precision=precision,
        reference=config.algorithm.kl > 0,
    )
    check_sight(base, policy.inputs, policy.sharing, processing_class)
    return policy


def load_weights(m: ModelConfig, device: torch.device, default: torch.dtype) -> Any:
    """The transformers model; of the type `default` where `model.dtype` is auto."""
    dtype = default if m.dtype == "auto" else getattr(torch, m.dtype)
    options: dict[str, Any] = {}
    if m.load_in_4bit:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError(
                "model.load_in_4bit: true needs the package bitsandbytes; pip install 'branchwise[quantized]', "
                "or set model.load_in_4bit: false"
            )
        if device.type != "cuda":  # on CPUs its kernels of packed weights pass no gradient, with no more than a warning
            raise ConfigError(f"model.load_in_4bit: true needs a CUDA GPU, not {device.type}; set it false")
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    options |= {"revision": m.revision, "trust_remote_code": m.trust_remote_code}
    try:
        return model_class(load_architecture(m)).from_pretrained(
            m.path, dtype=dtype, device_map={"": device}, **options
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot load {m.path!r}: {_why(m.path, error)}") from error


def load_processing(m: ModelConfig) -> Any:
    """The model's processor where it takes images, else its tokenizer.

    Raises:
        ConfigError: there is none, or it needs packages that are missing.
    """
    options = {"revision": m.revision, "trust_remote_code": m.trust_remote_code}
    with_images = _has_images(load_architecture(m))
    try:
        return _load_processor(m, options) if with_images else AutoTokenizer.from_pretrained(m.path, **options)
    except ImportError as error:
        missing = " ".join(str(error).split())
        raise ConfigError(f"model.path: the processor of {m.path!r} needs a package more: {missing}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: no tokenizer at {m.path!r}: {_why(m.path, error)}") from error


def load_architecture(m: ModelConfig) -> Any:
    """The model's transformers config: all that can be known of it without its weights.

    Raises:
        ConfigError: there is none.
    """
    try:
        return AutoConfig.from_pretrained(m.path, revision=m.revision, trust_remote_code=m.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot load {m.path!r}: {_why(m.path, error)}") from error


def positions_of(architecture: Any) -> int | None:
    """The most tokens of a prompt and its response that a model is made for; None: it does not say."""
    return getattr(architecture.get_text_config(decoder=True), "max_position_embeddings", None)


def model_class(architecture: Any) -> Any:
    """What loads a model of this transformers config."""
    return AutoModelForImageTextToText if _has_images(architecture) else AutoModelForCausalLM


def _has_images(architecture: Any) -> bool:
    """Whether the model is known to transformers as one of images and text."""
    return type(architecture) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _load_processor(m: ModelConfig, options: dict[str, Any]) -> Any:
    """The processor; without its part for videos where that alone is missing, or needs what is (torchvision)."""
    try:
        return AutoProcessor.from_pretrained(m.path, **options)
    except (ImportError, OSError):
        kind: Any = PROCESSOR_MAPPING[type(load_architecture(m))]
        if "video_processor" not in kind.get_attributes():
            raise
        return without_videos(kind).from_pretrained(m.path, **options)


def without_videos(kind: type) -> Any:
    """A processor's class, of the same name, that does not load what prepares videos."""
    kept = [name for name in kind.get_attributes() if name != "video_processor"]  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {"get_attributes": classmethod(lambda cls: kept)})


def _freeze_vision(model: Any, peft_config: Any) -> None:
    """Leave what encodes images as it is: its own parameters, and without adapters."""
    model = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    frozen = [parameter.requires_grad_(False) for parameter in eyes(model)]
    if not frozen:
        raise ConfigError("model.freeze_vision: true, but the model encodes no images; leave it out")
    if peft_config is not None and peft_config.exclude_modules is None:
        language = next(name for name, module in model.named_modules() if module is backbone_of(model))
        peft_config.exclude_modules = rf"(?!{re.escape(language)}\.).*"


def _why(path: str, error: Exception) -> str:
    """The first line of a library's error; of what can only be a folder, that it is not there."""
    if path.startswith(("/", ".", "~")) and not Path(path).expanduser().is_dir():
        return "no such folder; name one, or a model of the Hugging Face hub"
    return str(error).partition("\n")[0]


def _lora(lora: LoraConfig) -> peft.LoraConfig:
    targets = lora.target_modules
    return peft.LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")


def _settle(model: nn.Module, base: Any, checkpointing: bool) -> None:
    """No dropout and no jitter, for ratios compare one function's log-probs; checkpointing needs training mode."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(module, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    if checkpointing:
        # its name until transformers 5.2x
        enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        # the backward pass begins with the last layer: to keep its activations costs no memory at the peak
        layers = [module for module in base.modules() if getattr(module, "gradient_checkpointing", None) is True]
        layers[-1].gradient_checkpointing = False
    model.train(checkpointing)


def pick_device(name: str) -> torch.device:
    """The device of this name; auto: a GPU where there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = "cuda" if there["cuda"] else "cpu"
    if not there[name]:
        raise ConfigError(
            f"train.device: {name!r} is not there; set train.device: auto, or install a torch that has it"
        )
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 on GPUs that have it and on CPUs with instructions for it."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        quick = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        quick = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if quick else torch.float32
