"""How much memory sampling may take for keys and values."""

from __future__ import annotations

import psutil
import torch


def kv_memory_gb(device: torch.device, processes: int = 1) -> float:
    """A third of the memory that is free now; processes on a CPU share its memory."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available // processes
    return round(free / 3e9, 2)
