"""What a cache write demands: rows that fit their pools, slots, and scales of a kind that the pools' dtype has."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvproof_kernels.moves import check_move_pools, check_token_scales
from kvproof_kernels.tensor_checks import (
    check_device,
    check_dims,
    check_dtype,
    check_same_dtype,
    check_shape,
    check_unit_stride,
    shape_of,
)
from kvproof_kernels.tiles import CODES, DTYPES
from kvproof_kernels.validation import check_rows

Scale = float | Tensor
KINDS = {0: "tensor", 1: "head", 3: "token"}
"""What one scale serves, by the number of dims of all scales."""


def check_write(
    key: Tensor,
    value: Tensor | None,
    key_pool: Tensor,
    value_pool: Tensor | None,
    slot_mapping: Tensor,
    key_scale: Scale,
    value_scale: Scale,
) -> None:
    """Shapes, dtypes, devices, strides and scales of one cache write; see ``write_cache``."""
    if (value is None) != (value_pool is None):
        given, missing = ("value_pool", "value") if value is None else ("value", "value_pool")
        raise ValueError(f"{given} is given, {missing} is None; without values (MLA) both are None")
    check_move_pools(key_pool, value_pool)
    check_dims("key", key, 3)
    check_shape("key", key, (key.shape[0], *key_pool.shape[2:]))
    _check_row_dtype(key, key_pool)
    rows = {"key": key}
    if value is not None and value_pool is not None:
        check_shape("value", value, (key.shape[0], *value_pool.shape[2:]))
        check_same_dtype("value", value, "key", key)
        if value_pool.data_ptr() == key_pool.data_ptr():
            raise ValueError("key_pool and value_pool begin in the same place; MLA's keys are written without values")
        rows["value"] = value
    check_shape("slot_mapping", slot_mapping, (key.shape[0],))
    check_dtype("slot_mapping", slot_mapping, torch.int64)
    check_device(key_pool, rows | {"slot_mapping": slot_mapping})
    check_rows(**rows)
    check_unit_stride(slot_mapping=slot_mapping)
    _check_scales(key, key_pool, {"key_scale": key_scale} | ({} if value is None else {"value_scale": value_scale}))


def check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Each slot is -1 or in the pool, and comes once; a copy to the host."""
    outside = (slot_mapping < -1) | (slot_mapping >= num_slots)
    if outside.any():
        token = int(outside.nonzero()[0])
        raise ValueError(
            f"slot_mapping {shape_of(slot_mapping)}: token {token} goes to slot {int(slot_mapping[token])}, which is "
            f"neither -1 nor in range({num_slots})"
        )
    slots, counts = slot_mapping[slot_mapping >= 0].unique(return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"slot_mapping {shape_of(slot_mapping)}: several tokens go to slot {int(slots[counts > 1][0])}"
        )


def kind_of_scales(scale: Scale) -> str:
    """What one scale serves: "tensor", "head" or "token"."""
    return KINDS[scale.dim() if isinstance(scale, Tensor) else 0]


def _check_row_dtype(key: Tensor, key_pool: Tensor) -> None:
    if key.dtype == key_pool.dtype or (key.dtype in DTYPES and key_pool.dtype in CODES):
        return
    raise TypeError(
        f"key is {key.dtype}, key_pool {key_pool.dtype}; they must be the same, or the pool one of "
        f"{', '.join(map(str, CODES))} and the rows one of {', '.join(map(str, DTYPES))}"
    )


def _check_scales(key: Tensor, key_pool: Tensor, scales: dict[str, Scale]) -> None:
    for name, scale in scales.items():
        _check_scale(name, scale, key_pool)
        if key.dtype == key_pool.dtype and (isinstance(scale, Tensor) or scale != 1):
            raise ValueError(f"{name} {_shown(scale)}: key_pool {key_pool.dtype} takes rows as they are; it must be 1")
    kinds = {name: kind_of_scales(scale) for name, scale in scales.items()}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{name} {_shown(scale)} is one a {kinds[name]}" for name, scale in scales.items())
        raise ValueError(f"{shown}; they must be of one kind")
    if "token" in kinds.values() and key_pool.dtype != torch.int8:
        raise ValueError(
            f"key_scale {_shown(scales['key_scale'])} is one a token; scales a token are made for pools of torch.int8, "
            f"key_pool is {key_pool.dtype}"
        )


def _check_scale(name: str, scale: Scale, pool: Tensor) -> None:
    if not isinstance(scale, Tensor):
        limits = torch.finfo(torch.float32)
        if not (math.isfinite(scale) and limits.tiny <= scale <= limits.max):
            raise ValueError(f"{name} {scale} must be a positive number in the range of float32")
    elif scale.dim() == 3:
        check_token_scales(pool, **{name: scale})
    elif tuple(scale.shape) != (pool.shape[2],):
        raise ValueError(
            f"{name} {shape_of(scale)} must be a number, [{pool.shape[2]}] (one a head) or {list(pool.shape[:3])} "
            "(one a token)"
        )
    else:
        check_dtype(name, scale, torch.float32)
        check_device(pool, {name: scale})


def _shown(scale: Scale) -> str:
    return shape_of(scale) if isinstance(scale, Tensor) else str(scale)
