"""Which tile shape a kernel runs with: plain tables, by what is known before a launch.

Nothing is tuned at run time, so that equal inputs give equal bits and ``kvproof_kernels.aot`` can compile whatever may
be chosen here. Group size, block size, window and strides are run-time arguments: they cost no compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kvproof_kernels.tuned import Place, tuned_tile

MAX_HEAD_DIM = 512
"""Of one part; a head dim may have MAX_REST_DIM more, as MLA's 512 + 64 has."""
MAX_REST_DIM = 64
TRITON_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
DTYPES = tuple(TRITON_TYPES)
"""Of query, output, and pools that are not quantised."""
CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
"""Of quantised pools."""


@dataclass(frozen=True)
class Configuration:
    """What one compiled form of the attention kernel is specialised for, besides dtypes."""

    block_m: int
    """(query row, head of the group) pairs a tile."""
    block_n: int
    """Tokens a tile."""
    block_d: int
    """Head dim and value dim, padded to a power of two."""
    num_warps: int
    num_stages: int
    block_r: int = 0
    """The rest of a head dim above MAX_HEAD_DIM, padded; 0: there is none."""
    key_type: torch.dtype = torch.float16
    """Of the operands of q·k: what is loaded is widened to it."""
    value_type: torch.dtype = torch.float16
    """Of the operands of p·v; the weights are rounded to it."""
    options: bool = False
    """Soft cap or ALiBi."""
    shared_kv: bool = False
    """MLA: the tile of keys, without its rest, serves as values."""
    token_scales: bool = False

    @property
    def constants(self) -> dict[str, Any]:
        """By the names that the kernel uses."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_D": self.block_d,
            "BLOCK_R": self.block_r,
            "BLOCK_DV": self.block_d,
            "KEY_TYPE": TRITON_TYPES[self.key_type],
            "VALUE_TYPE": TRITON_TYPES[self.value_type],
            "OPTIONS": self.options,
            "SHARED_KV": self.shared_kv,
            "TOKEN_SCALES": self.token_scales,
        }

    @property
    def compiler_options(self) -> dict[str, Any]:
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


def compiler_options(num_warps: int, num_stages: int) -> dict[str, Any]:
    """What Triton's compiler is told. Its default of fusing a·b + c differs between releases, so it is said here."""
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}


@dataclass(frozen=True)
class Form:
    """What a model fixes, as far as it decides what is compiled."""

    head_dim: int
    value_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    options: bool = False
    mla: bool = False
    token_scales: bool = False


Tile = tuple[int, int, int, int]
"""(BLOCK_M, BLOCK_N, num_warps, num_stages)."""

# By what the rows are, bytes an element of the query and the larger dim, padded; for every chip. "few": the pairs of a
# decode row or of a short draft, "many": those of a chunk, a longer draft or a large group. What bounds a tile: 255
# registers a thread (of which the accumulator takes BLOCK_M × dim / (32 × num_warps)), and the smallest shared memory,
# 64 KiB on gfx942.
TILES: Mapping[tuple[str, int, int], Tile] = {
    ("few", 2, 64): (16, 64, 4, 2),
    ("few", 2, 128): (16, 64, 4, 2),
    ("few", 2, 256): (16, 16, 4, 2),
    ("few", 2, 512): (16, 16, 4, 2),
    ("few", 4, 64): (16, 32, 4, 2),
    ("few", 4, 128): (16, 16, 4, 1),
    ("few", 4, 256): (16, 16, 8, 1),
    ("few", 4, 512): (16, 16, 16, 1),
    ("many", 2, 64): (64, 32, 4, 2),
    ("many", 2, 128): (64, 32, 4, 2),
    ("many", 2, 256): (64, 32, 8, 2),
    ("many", 2, 512): (32, 16, 8, 1),
    ("many", 4, 64): (32, 16, 4, 1),
    ("many", 4, 128): (32, 16, 8, 1),
    ("many", 4, 256): (32, 16, 8, 1),
    ("many", 4, 512): (16, 16, 16, 1),
}
CODE_TILES: Mapping[tuple[str, int, int], Tile] = {("few", 2, 512): (16, 16, 8, 1), ("many", 2, 512): (16, 16, 8, 1)}
"""Where widening the codes of an 8-bit pool takes the registers that are left."""
HIP_TILES: Mapping[tuple[str, int, int], Tile] = {
    ("many", 2, 256): (64, 16, 8, 1),
    ("few", 2, 512): (16, 16, 4, 2),
    ("many", 2, 512): (16, 16, 4, 2),
}
"""Where AMD's compiler spills with what is above."""

# In the interpreter an operation costs the same whatever the tile's size, hence few and big ones.
INTERPRETED_TILES: Mapping[str, tuple[int, int]] = {"few": (16, 128), "many": (128, 128)}


def padded(head_dim: int) -> int:
    """A dim as the kernel sees it: a power of two from 64 to ``MAX_HEAD_DIM``."""
    return min(MAX_HEAD_DIM, max(64, 1 << (head_dim - 1).bit_length()))


def rest_of(head_dim: int) -> int:
    """What ``padded`` leaves over, padded: 0 or ``MAX_REST_DIM``."""
    return MAX_REST_DIM if head_dim > MAX_HEAD_DIM else 0


def rows_kind(num_pairs: int) -> str:
    """The key of the tables for sequences of at most ``num_pairs`` (query row, head of the group) pairs."""
    return "few" if num_pairs <= 16 else "many"


def tile_for(kind: str, form: Form, backend: str, place: Place | None = None) -> Configuration:
    """The compiled form of ``form`` for this ``kind`` of rows. ``backend``: "cuda", "hip" or "interpreter".
    ``place``: where it runs; a tile that was measured for just that is preferred."""
    tiles = {**TILES, **(CODE_TILES if form.kv_dtype in CODES else {}), **(HIP_TILES if backend == "hip" else {})}
    block_d, block_r = padded(max(form.head_dim, form.value_dim)), rest_of(form.head_dim)
    tuned = None if place is None else tuned_tile(place, kind, form)
    block_m, block_n, num_warps, num_stages = tuned or tiles[kind, form.dtype.itemsize, block_d]
    if form.token_scales and not tuned:
        block_n = max(16, block_n // 2)  # two scales a token take registers as well
    if backend == "interpreter":
        block_m, block_n = INTERPRETED_TILES[kind]
    key_type, value_type = operand_types(form, interpreted=backend == "interpreter")
    return Configuration(
        block_m,
        block_n,
        block_d,
        num_warps,
        num_stages,
        block_r,
        key_type,
        value_type,
        form.options,
        shared_kv=form.mla and block_r > 0 and form.value_dim == block_d,
        token_scales=form.token_scales,
    )


def operand_types(form: Form, interpreted: bool) -> tuple[torch.dtype, torch.dtype]:
    """Of q·k and of p·v.

    The interpreter can calculate neither in bfloat16 nor in 8 bits, and gets float32. Weights that carry the scale of a
    token leave the range of float16, and become bfloat16.
    """
    if interpreted and (form.dtype == torch.bfloat16 or form.kv_dtype in CODES):
        return torch.float32, torch.float32
    if form.token_scales and form.dtype == torch.float16:
        return torch.float16, torch.bfloat16
    return form.dtype, form.dtype


@dataclass(frozen=True)
class MergeConfiguration:
    """The same for merging partial results."""

    block_p: int
    """Partial results a tile."""
    block_dv: int
    num_warps: int = 4
    num_stages: int = 1

    @property
    def constants(self) -> dict[str, Any]:
        return {"BLOCK_P": self.block_p, "BLOCK_DV": self.block_dv}

    @property
    def compiler_options(self) -> dict[str, Any]:
        return compiler_options(self.num_warps, self.num_stages)


def merge_tile_for(value_dim: int) -> MergeConfiguration:
    """The compiled form of ``combine``: a tile takes 32 registers a thread."""
    return MergeConfiguration(4096 // padded(value_dim), padded(value_dim))
