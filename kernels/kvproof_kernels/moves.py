"""What cache write and block copy have in common: tile, strides, and what they demand of their pools."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor

from kvproof_kernels.launch import is_interpreted, strides
from kvproof_kernels.tensor_checks import check_device, shape_of
from kvproof_kernels.validation import check_pools, check_rows

MAX_ROW_DIM = 1024
"""Elements of a row: the head dim, with MLA the latent and the rotary dims together."""
TILE_ELEMENTS = 2048
"""16 a thread: rows of 2 bytes are two loads of 16 bytes each."""


def move_tile(row_dim: int, device: torch.device | None = None) -> tuple[int, int]:
    """(BLOCK_T, BLOCK_D) for rows of ``row_dim``: slots and padded dims of a tile; no ``device``: of the compiled form.

    In the interpreter an operation costs the same whatever the tile's size, hence few and big ones.
    """
    block_d = max(64, 1 << (row_dim - 1).bit_length())
    if device is not None and is_interpreted(device):
        return 128, block_d
    return max(1, TILE_ELEMENTS // block_d), block_d


def row_strides(tensor: Tensor | None, count: int) -> tuple[int, ...]:
    """The first ``count`` strides; zeros for a tensor that is not there."""
    return (0,) * count if tensor is None else strides(tensor)[:count]


def scale_strides(scale: Tensor | float | None) -> tuple[int, ...]:
    """Block, offset and head: a scale of a head is the same in every slot, a number everywhere."""
    own = scale.stride() if isinstance(scale, Tensor) else ()
    return (0,) * (3 - len(own)) + own


def block_pairs(copies: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(source, destination) block ids; TypeError for one that is no integer."""
    pairs = []
    for source, destination in copies:
        try:
            pairs.append((operator.index(source), operator.index(destination)))
        except TypeError:
            raise TypeError(f"copy ({source}, {destination}): a block id must be an integer") from None
    return pairs


def check_move_pools(key_pool: Tensor, value_pool: Tensor | None) -> None:
    """Pools as for attention, but of rows up to MAX_ROW_DIM; ``None``: the keys alone."""
    check_pools(key_pool, value_pool, MAX_ROW_DIM)
    check_rows(key_pool=key_pool, **({} if value_pool is None else {"value_pool": value_pool}))


def check_token_scales(pool: Tensor, **scales: Tensor) -> None:
    """Scales a token, float32 [num_blocks, block_size, num_kv_heads] of any strides."""
    for name, scale in scales.items():
        if tuple(scale.shape) != tuple(pool.shape[:3]):
            raise ValueError(f"{name} {shape_of(scale)} must be {list(pool.shape[:3])}, one scale a row of the pool")
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} {shape_of(scale)} is {scale.dtype}; it must be torch.float32")
    check_device(pool, scales)
