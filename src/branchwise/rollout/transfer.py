"""How the policy's weights reach a vLLM server: from GPU to GPU, or through files that both machines see."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from branchwise.config_engine import VllmServerConfig
from branchwise.errors import ConfigError
from branchwise.rollout import export
from branchwise.rollout.server import Server, ServerFault


class Transfer(Protocol):
    model: str | None
    """The name that requests ask for; None: the server's own model."""
    rounding: export.Rounding

    def stage(self, policy: Any) -> None:
        """Make the policy's present weights ready to be pushed, until the next call."""

    async def push(self, server: Server) -> None:
        """Give a server the staged weights; raises what the server's HTTP calls raise."""

    @property
    def replayable(self) -> bool:
        """Whether what is staged can be pushed at any time, to servers that come back."""
        return True

    def close(self) -> None: ...


def make_transfer(policy: Any, settings: VllmServerConfig, folder: str, dtype: torch.dtype, still: bool) -> Transfer:
    """The way that the settings and the machine allow.

    Args:
        folder: for files; every server must see it under the same path.
        dtype: of the servers' weights.
        still: whether weights stay as they are from one `stage` to the next.

    Raises:
        ConfigError: NCCL is asked for where it cannot be.
    """
    if export.is_adapted(policy) and settings.lora == "adapter":
        return AdapterTransfer(Path(folder))
    device = next(policy.parameters()).device
    possible = device.type == "cuda" and importlib.util.find_spec("vllm") is not None
    if settings.transfer == "nccl" and not possible:
        raise ConfigError(
            f"engine.transfer: 'nccl' needs the policy on a GPU (it is on {device}) and the package vllm beside it; "
            "set engine.transfer: file"
        )
    if possible and settings.transfer != "file":
        return NcclTransfer(device, dtype, still)
    return FileTransfer(Path(folder), dtype)


class _Files:
    """A folder for each version, of which the newest is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.version = folder.resolve(), 0
        self.rounding = export.Rounding()

    @property
    def place(self) -> Path:
        return self.folder / f"{self.version:06d}"

    def next(self) -> Path:
        old, self.version = self.place, self.version + 1
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        shutil.rmtree(old, ignore_errors=True)
        return self.place

    @property
    def replayable(self) -> bool:
        return True

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        with suppress(OSError):  # it is not empty, or was never made
            self.folder.rmdir()


class FileTransfer(_Files):
    """Full weights, adapters merged, through a safetensors file."""

    model: str | None = None

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        super().__init__(folder)
        self.dtype, self.tied = dtype, False
        self._checked: set[str] = set()

    def stage(self, policy: Any) -> None:
        self.rounding = export.Rounding()
        self.tied = export.has_tied_head(policy)
        export.save_full(policy, self.next(), self.dtype, self.rounding)

    async def push(self, server: Server) -> None:
        if self.tied and server.life not in self._checked:
            await server.refuse_tied_head()
            self._checked.add(server.life)
        kwargs = {"weights_path": str(self.place)}
        await server.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})


class AdapterTransfer(_Files):
    """A LoRA adapter beside the server's base weights, which are never touched."""

    model: str | None = "policy"

    def stage(self, policy: Any) -> None:
        export.adapter(policy)
        policy.save_pretrained(self.next())

    async def push(self, server: Server) -> None:
        body = {"lora_name": self.model, "lora_path": str(self.place), "load_inplace": True}
        await server.post("/v1/load_lora_adapter", body)


class NcclTransfer:
    """Full weights through vLLM's own NCCL transfer, one group of processes for each server."""

    model: str | None = None

    def __init__(self, device: torch.device, dtype: torch.dtype, still: bool) -> None:
        self.device, self.dtype, self.still = device, dtype, still
        self.rounding = export.Rounding()
        self.weights: dict[str, torch.Tensor] = {}
        self._engines: dict[str, tuple[str, Any]] = {}

    @property
    def replayable(self) -> bool:
        return self.still

    def stage(self, policy: Any) -> None:
        self.rounding = export.Rounding()
        self.weights = export.full_weights(policy, self.dtype, self.rounding)

    async def push(self, server: Server) -> None:
        life, engine = self._engines.get(server.url, ("", None))
        try:
            if life != server.life:  # new, or started anew: its end of the old group is gone
                size = (await server.get("/get_world_size"))["world_size"]
                engine = await asyncio.to_thread(self._connect, server, size)
                self._engines[server.url] = (server.life, engine)
            await asyncio.to_thread(engine.send_weights)
        except RuntimeError as error:
            raise ServerFault(f"NCCL: {error}") from None

    def _connect(self, server: Server, size: int) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        info = NCCLTrainerInitInfo(master_address=_address_towards(server.url), master_port=port, world_size=size + 1)
        return WeightTransferTrainerFactory.trainer_init(info, client=SyncClient(server), source=weight_source(self))

    def close(self) -> None:
        for _, engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()


class SyncClient:
    """The four calls of vLLM's `VLLMWeightSyncClient`, over a server's HTTP."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.server.post_now("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.server.post_now("/start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self.server.post_now("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.server.post_now("/finish_weight_update", {"weight_version": weight_version})


def weight_source(transfer: NcclTransfer) -> Any:
    """What is staged, as vLLM's `WeightSource`: metadata and tensors in one order."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class Staged(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in transfer.weights.items()]

        def __iter__(self) -> Any:
            for name, weight in transfer.weights.items():
                yield name, weight.detach().to(transfer.device).contiguous()

    return Staged()


def _address_towards(url: str) -> str:
    """This machine's address on the way to a server."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return probe.getsockname()[0]
