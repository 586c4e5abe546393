"""Cache writes and block copies in plain torch, into pools of every format."""

from __future__ import annotations

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, Copies, KVPools

LARGEST_CODE = 127
"""Of int8: -128 has no counterpart."""


def write_cache(spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
    """Store ``key`` and ``value`` [num_tokens, num_kv_heads, dim] in ``slot_mapping`` [num_tokens]; -1 is nowhere.

    Scales a head are given. Scales a token are made: max |row| ÷ 127 of each key head, and stored in the token's slot.
    Of latent attention ``key`` alone is written, which holds the values.
    """
    kept = slot_mapping >= 0
    slots = slot_mapping[kept].long()
    place = (slots // spec.block_size, slots % spec.block_size)
    parts = [(pools.key, key, spec.k_scale, pools.key_scale), (pools.value, value, spec.v_scale, pools.value_scale)]
    for pool, new, scale, scales in parts[: 1 if spec.mla else 2]:
        rows = new[kept]
        if spec.kv_scales == "token" and scales is not None:
            scales[place] = rows.float().abs().amax(-1) / LARGEST_CODE
        pool[place] = encode(rows, own_scales(scales, place, scale), pool.dtype)


def own_scales(scales: Tensor | None, place: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor | float:
    """What codes at ``place`` (blocks, offsets) are multiplied by: ``scale``, or one for each head, [..., heads, 1]."""
    if scales is None:
        return scale
    return (scales if scales.dim() == 1 else scales[place])[..., None]


def encode(rows: Tensor, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """What a pool of ``dtype`` holds of ``rows`` [num_tokens, num_kv_heads, dim]: rounded to nearest even, and within
    the range of an 8-bit type, beyond which torch's own cast gives NaN or infinity. A scale of 0 makes zeros."""
    if isinstance(scale, float) and scale == 1 and dtype.itemsize > 1:
        return rows.to(dtype)
    stored = rows.float() / scale
    if isinstance(scale, Tensor):
        stored = stored.where(scale != 0, 0)
    if dtype.itemsize > 1:
        return stored.to(dtype)
    if dtype.is_floating_point:
        return stored.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    # A NaN has no code: it is in the scale of its row, if that has one.
    return stored.nan_to_num(nan=0.0).round().clamp(-LARGEST_CODE, LARGEST_CODE).to(dtype)


def copy_blocks(pools: KVPools, copies: Copies) -> None:
    """Copy whole (source, destination) blocks, their scales a token included; all sources are read first."""
    if not copies:
        return
    source, destination = torch.tensor(list(copies), device=pools.key.device).unbind(1)
    for pool in (pools.key, pools.value, pools.key_scale, pools.value_scale):
        if pool is not None and pool.dim() > 1:  # a scale a head belongs to no block
            pool[destination] = pool[source]
