"""The engines' settings, a section for each kind."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineSection(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)

    overlaps: ClassVar[bool] = False
    """Whether it can sample while the policy is being updated."""
    takes_quantized: ClassVar[bool] = False
    """Whether it can sample from 4-bit weights."""
    takes_images: ClassVar[bool] = False
    """Whether it can sample after images."""


class TransformersConfig(EngineSection):
    """In-process, on any machine: the embedded default."""

    takes_quantized = takes_images = True

    kind: Literal["transformers"] = "transformers"


class VllmConfig(EngineSection):
    """vLLM in the trainer's process (`pip install 'branchwise[vllm]'`)."""

    kind: Literal["vllm"] = "vllm"
    lora: Literal["adapter", "merge"] = "adapter"
    """A LoRA policy beside vLLM's base weights, exact in any precision; or merged into them: quicker, but small
    updates are rounded away in low precision."""
    gpu_memory: float = Field(0.45, gt=0, lt=1)
    """Share of the GPU's memory for vLLM's weights and cache, given up while the policy updates; on a CPU the cache has
    sampling.kv_memory_gb."""
    eager: bool = False
    """Without graphs and compilation: starts quicker, samples slower."""


class VllmServerConfig(EngineSection):
    """One or several `branchwise serve` processes, here or on other machines."""

    overlaps = True

    kind: Literal["vllm_server"] = "vllm_server"
    urls: list[str] = Field(min_length=1)
    """Such as http://gpu1:8000."""
    api_key: str | None = None
    lora: Literal["adapter", "merge"] = "adapter"
    """As for vllm."""
    transfer: Literal["auto", "nccl", "file"] = "auto"
    """How weights get there: from GPU to GPU, or through a folder that all machines see. auto: nccl where the policy
    and the servers are on GPUs, and weights (not an adapter) are sent."""
    folder: str | None = None
    """For weights sent by file; default: train.output_dir with -weights after it."""
    timeout: float = Field(600.0, gt=0)
    """Seconds a server may take for one request before it is dropped."""
    patience: float = Field(600.0, ge=0)
    """Seconds to wait for a server to come back once none is left."""


Engine = Annotated[TransformersConfig | VllmConfig | VllmServerConfig, Field(discriminator="kind")]


def in_short(value: Any) -> Any:
    """`engine: vllm` is `engine: {kind: vllm}`."""
    return {"kind": value} if isinstance(value, str) else value
