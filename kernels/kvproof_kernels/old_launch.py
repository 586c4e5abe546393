"""Which tile shape a kernel runs with, and how it is started: compiled on a GPU, interpreted on a CPU.

The shape follows from the padded head dim, the dtype and the chip by the tables below; nothing is tuned at run time, so
that equal inputs give equal bits and ``kvproof_kernels.aot`` can compile whatever may be chosen here. Group size, block
size and strides are run-time arguments: they cost no compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from kvproof_kernels.interpreter import run_interpreted

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Configuration:
    """What one compiled form of an attention kernel is specialised for, besides dtypes."""

    block_m: int
    """Query rows a tile."""
    block_n: int
    """Tokens a tile."""
    block_d: int
    """Head dim and value dim, padded to a power of two."""
    num_warps: int
    num_stages: int
    upcast: bool = False
    """Widen to float32 after every load; for bfloat16 in the interpreter, which can't calculate in it."""

    @property
    def constants(self) -> dict[str, Any]:
        """By the names that the kernels use."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_D": self.block_d,
            "BLOCK_DV": self.block_d,
            "UPCAST": self.upcast,
        }

    @property
    def compiler_options(self) -> dict[str, Any]:
        return compiler_options(self.num_warps, self.num_stages)

    @property
    def options(self) -> dict[str, Any]:
        return compiler_options(self.num_warps, self.num_stages)


@dataclass(frozen=True)
class CopyConfiguration:
    """The same for the kernels that only move bits."""

    block_t: int
    """Tokens, or slots of a block, a tile."""
    block_d: int
    num_warps: int = 4
    num_stages: int = 1

    @property
    def constants(self) -> dict[str, Any]:
        return {"BLOCK_T": self.block_t, "BLOCK_D": self.block_d}

    @property
    def compiler_options(self) -> dict[str, Any]:
        return compiler_options(self.num_warps, self.num_stages)

    @property
    def options(self) -> dict[str, Any]:
        return compiler_options(self.num_warps, self.num_stages)


def compiler_options(num_warps: int, num_stages: int) -> dict[str, Any]:
    """What Triton's compiler is told. Its default of fusing a·b + c differs between releases, so it is said here."""
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}


Tile = tuple[int, int, int, int]
"""(BLOCK_M, BLOCK_N, num_warps, num_stages)."""

# By kernel, bytes an element and padded head dim, for every chip. What bounds a tile: 255 registers a thread (of which
# the accumulator takes BLOCK_M × head_dim / (32 × num_warps)), and the smallest shared memory, 64 KiB on gfx942.
TILES: Mapping[tuple[str, int, int], Tile] = {
    ("decode", 2, 64): (16, 64, 4, 2),
    ("decode", 2, 128): (16, 64, 4, 2),
    ("decode", 2, 256): (16, 32, 4, 2),
    ("decode", 4, 64): (16, 32, 4, 2),
    ("decode", 4, 128): (16, 32, 4, 1),
    ("decode", 4, 256): (16, 16, 8, 1),
    ("prefill", 2, 64): (64, 32, 4, 2),
    ("prefill", 2, 128): (64, 32, 4, 2),
    ("prefill", 2, 256): (64, 32, 8, 2),
    ("prefill", 4, 64): (32, 16, 4, 1),
    ("prefill", 4, 128): (32, 16, 8, 1),
    ("prefill", 4, 256): (32, 16, 8, 1),
}
HIP_TILES: Mapping[tuple[str, int, int], Tile] = {("prefill", 2, 256): (64, 32, 8, 1)}
"""Where AMD's compiler spills with what is above."""

# In the interpreter an operation costs the same whatever the tile's size, hence few and big ones.
INTERPRETED_TILES: Mapping[str, tuple[int, int]] = {"decode": (16, 128), "prefill": (128, 128)}


def padded(head_dim: int) -> int:
    """``head_dim`` as the kernels see it: a power of two, not below 64."""
    return max(64, 1 << (head_dim - 1).bit_length())


def tile_for(kernel: str, head_dim: int, itemsize: int, backend: str) -> Configuration:
    """The compiled form of ``kernel`` ("decode" or "prefill"), for the larger of head and value dim.

    ``backend``: "cuda" or "hip".
    """
    tiles = TILES if backend == "cuda" else {**TILES, **HIP_TILES}
    block_m, block_n, num_warps, num_stages = tiles[kernel, itemsize, padded(head_dim)]
    return Configuration(block_m, block_n, padded(head_dim), num_warps, num_stages)


def configure(kernel: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Configuration:
    """The configuration that ``kernel`` runs with on ``device``."""
    if not is_interpreted(device):
        return tile_for(kernel, head_dim, dtype.itemsize, "hip" if torch.version.hip else "cuda")
    block_m, block_n = INTERPRETED_TILES[kernel]
    return Configuration(block_m, block_n, padded(head_dim), 1, 1, upcast=dtype == torch.bfloat16)


def copy_tile_for(head_dim: int) -> CopyConfiguration:
    """The compiled form of cache write and block copy, for the larger of head and value dim."""
    return CopyConfiguration(16, padded(head_dim))


def configure_copy(head_dim: int, device: torch.device) -> CopyConfiguration:
    """The configuration that cache write and block copy run with on ``device``."""
    return CopyConfiguration(128, padded(head_dim)) if is_interpreted(device) else copy_tile_for(head_dim)


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels on ``device`` run in Triton's interpreter: always on a CPU, and under TRITON_INTERPRET=1."""
    from kvproof_kernels import steps

    return device.type == "cpu" or isinstance(steps.online_softmax, InterpretedFunction)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    configuration: Configuration | CopyConfiguration,
    arguments: tuple[Any, ...],
) -> None:
    """Start ``kernel`` on the device of its first argument; an empty grid is no work."""
    if 0 in grid:
        return
    if is_interpreted(arguments[0].device):
        run_interpreted(kernel, grid, *arguments, **configuration.constants)
        return
    kernel[grid](*arguments, **configuration.constants, **configuration.options)


def as_bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: one compilation an element size, and no rule about NaN touches what is moved."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides in elements. A dim of size 1 may carry any stride; it gets one that keeps the kernels' alignment."""
    aligned = zip(tensor.stride(), tensor.shape, strict=True)
    return tuple(tensor.shape[-1] if size == 1 else stride for stride, size in aligned)
