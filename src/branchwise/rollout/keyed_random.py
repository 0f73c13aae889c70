"""Random numbers that depend on what is drawn, not on when: one for each (seed, step, draw, n, k, m, token).

Each node has a stream of its own, the SplitMix64 generator (Steele, Lea and Flood 2014) begun at a key
hashed from the node's place. Batching, order and compaction therefore change nothing that is drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MASK = (1 << 64) - 1


def node_key(seed: int, step: int, draw: int, n: int, k: int, m: int) -> int:
    """The key of a node's stream, an int64; a thought's or a response's m is -1."""
    key = 0
    for part in (seed, step, draw, n, k, m):
        key = _mix((key + GOLDEN) ^ (part & MASK))
    return _signed(key)


def uniform(key_R: Tensor, token_R: Tensor) -> Tensor:
    """Number `token` (from 0) of each row's stream.

    Args:
        key_R: int64 keys of `node_key`.
        token_R: int64 index of the token in its node.

    Returns:
        float64 [R] in [0, 1), 53 bits each (float32, 24 bits, on devices without float64).
    """
    z_R = key_R + (token_R + 1) * _signed(GOLDEN)  # int64 wraps, as the algorithm wants
    for shift, factor in MIXERS:
        z_R = (z_R ^ _shifted(z_R, shift)) * _signed(factor)
    z_R = z_R ^ _shifted(z_R, 31)
    if key_R.device.type == "mps":
        return _shifted(z_R, 40).to(torch.float32) * 2.0**-24
    return _shifted(z_R, 11).to(torch.float64) * 2.0**-53


def _mix(z: int) -> int:
    """SplitMix64's output function, on Python integers."""
    z &= MASK
    for shift, factor in MIXERS:
        z = ((z ^ (z >> shift)) * factor) & MASK
    return z ^ (z >> 31)


def _shifted(z_R: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (z_R >> bits) & ((1 << (64 - bits)) - 1)


def _signed(z: int) -> int:
    return z - (1 << 64) if z >= 1 << 63 else z
