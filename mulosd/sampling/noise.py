"""Counter-based sampling noise: a pure function of (seed, stream, grid, position, iteration, code).

No generator state exists, so an image's noise depends on its identity and never on batch, order or device.
The hash is a 64-bit mix (the finaliser constants are those of SplitMix64, Steele et al. 2014) evaluated with
int64 wrap-around arithmetic, which torch defines equally on every device.
"""

import torch
from torch import Tensor

STREAMS = {"target": 1, "draft": 2, "accept": 3, "residual": 4, "condition": 5}


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def _combine(state: Tensor, value: Tensor | int) -> Tensor:
    return _mix(state * _GOLDEN + value + _GOLDEN)


def uniform(seeds: Tensor, positions: Tensor, size: int, *, stream: str, grid: int, iteration: int = 0) -> Tensor:
    """Uniform float64 in (0, 1), [B, Q, size].

    seeds: int64 [B]; positions: int64 [B, Q] raster indices; grid: side of the model's grid.
    """
    state = _combine(_mix(seeds)[:, None], STREAMS[stream])
    state = _combine(_combine(_combine(state, grid), iteration), positions)
    codes = torch.arange(size, device=seeds.device, dtype=torch.int64)
    bits = _shift_right(_combine(state[..., None], codes), 12)  # 52 bits: one half is added exactly, so never 1
    return (bits.double() + 0.5) / float(1 << 52)


def gumbel(seeds: Tensor, positions: Tensor, size: int, *, stream: str, grid: int, iteration: int = 0) -> Tensor:
    """Standard Gumbel noise float64 [B, Q, size]; argmax(log p + noise) draws from p."""
    return -torch.log(-torch.log(uniform(seeds, positions, size, stream=stream, grid=grid, iteration=iteration)))
