"""Cache write: put this step's K and V rows into their slots, as they are or as 8-bit codes.

Token i goes to slot s = slot_mapping[i], i.e. to offset ``s % block_size`` of block ``s // block_size``; -1 goes
nowhere (the reshape-and-cache kernel of PagedAttention, Kwon et al., SOSP 2023, section 5.1). Into a pool of their own
dtype rows are moved as bits: what the model wrote is what attention reads, NaN payloads included. Into an 8-bit pool
goes the code of x ÷ scale, with one scale a tensor, a head, or a token. That of a token is made here, the largest
magnitude of the row ÷ 127, and stored at the token's slot. One program writes BLOCK_T tokens of one key head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.codes import encode, scale_of_rows
from kvproof_kernels.launch import as_bits, launch
from kvproof_kernels.moves import move_tile, row_strides, scale_strides
from kvproof_kernels.tiles import CopyConfiguration
from kvproof_kernels.write_checks import check_slots, check_write, kind_of_scales

SCALE_STRIDES = [
    *("stride_key_scale_block", "stride_key_scale_offset", "stride_key_scale_head"),
    *("stride_value_scale_block", "stride_value_scale_offset", "stride_value_scale_head"),
]
UNSPECIALIZED = ["key_scale", "value_scale", "slot_mapping", *SCALE_STRIDES, "num_tokens", "block_size"]


@dataclass(frozen=True)
class WriteConfiguration(CopyConfiguration):
    """What one compiled form is specialised for, besides the dtype of the rows."""

    code: str = "bits"
    """"bits", or the code of the pool: "float8_e4m3fn", "float8_e5m2", "int8"."""
    scales: str = "tensor"
    """What one scale serves: "tensor", "head" or "token"."""

    @property
    def constants(self) -> dict[str, Any]:
        return super().constants | {"CODE": self.code, "SCALES": self.scales}


@triton.jit
def write_rows(
    rows, pool, scale, tokens, slots, head, block_size, num_dims,
    stride_row, stride_row_head,
    stride_block, stride_offset, stride_head,
    stride_scale_block, stride_scale_offset, stride_scale_head,
    BLOCK_D: tl.constexpr, CODE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One head's rows of ``tokens`` to ``slots``, [BLOCK_T] int64 both; a negative slot is nowhere."""
    dims = tl.arange(0, BLOCK_D)
    goes = slots >= 0
    blocks = slots // block_size
    offsets = slots % block_size
    mask = goes[:, None] & (dims < num_dims)[None, :]

    sources = rows + tokens * stride_row + head * stride_row_head
    x = tl.load(sources[:, None] + dims[None, :], mask=mask, other=0)  # [BLOCK_T, BLOCK_D]
    if CODE != "bits":
        x = x.to(tl.float32)
        if SCALES == "tensor":
            divisor = tl.full([1, 1], scale, tl.float32)
        elif SCALES == "head":
            divisor = tl.load(scale + head * stride_scale_head)
        else:
            scales = scale_of_rows(x)  # [BLOCK_T]
            places = scale + blocks * stride_scale_block + offsets * stride_scale_offset + head * stride_scale_head
            tl.store(places, scales, mask=goes)
            divisor = tl.where(scales == 0.0, 1.0, scales)[:, None]
        x = encode(tl.div_rn(x, divisor), CODE)

    destinations = pool + blocks * stride_block + offsets * stride_offset + head * stride_head
    tl.store(destinations[:, None] + dims[None, :], x, mask=mask)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def cache_write_kernel(
    key,  # [num_tokens, num_kv_heads, head_dim]
    value,  # [num_tokens, num_kv_heads, value_dim], or None: the keys alone
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    key_scale,  # a number, [num_kv_heads] or [num_blocks, block_size, num_kv_heads] float32, by SCALES
    value_scale,
    slot_mapping,  # [num_tokens] int64
    stride_key, stride_key_head,
    stride_value, stride_value_head,
    stride_key_block, stride_key_offset, stride_key_pool_head,
    stride_value_block, stride_value_offset, stride_value_pool_head,
    stride_key_scale_block, stride_key_scale_offset, stride_key_scale_head,
    stride_value_scale_block, stride_value_scale_offset, stride_value_scale_head,
    num_tokens,
    block_size,
    head_dim,
    value_dim,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CODE: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    tokens = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)  # [BLOCK_T]
    slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)
    head = tl.program_id(1).to(tl.int64)

    write_rows(
        key, key_pool, key_scale, tokens, slots, head, block_size, head_dim,
        stride_key, stride_key_head,
        stride_key_block, stride_key_offset, stride_key_pool_head,
        stride_key_scale_block, stride_key_scale_offset, stride_key_scale_head,
        BLOCK_D, CODE, SCALES,
    )  # fmt: skip
    if value is not None:
        write_rows(
            value, value_pool, value_scale, tokens, slots, head, block_size, value_dim,
            stride_value, stride_value_head,
            stride_value_block, stride_value_offset, stride_value_pool_head,
            stride_value_scale_block, stride_value_scale_offset, stride_value_scale_head,
            BLOCK_D, CODE, SCALES,
        )  # fmt: skip


def write_cache(
    key: Tensor,
    value: Tensor | None,
    key_pool: Tensor,
    value_pool: Tensor | None,
    slot_mapping: Tensor,
    *,
    key_scale: float | Tensor = 1.0,
    value_scale: float | Tensor = 1.0,
    validate: bool = False,
) -> None:
    """Scatter K and V rows to their slots; every other byte of the pools stays as it was.

    Args:
        key: [num_tokens, num_kv_heads, head_dim], any strides (a slice of a fused QKV row), unit last one.
        value: [num_tokens, num_kv_heads, value_dim], likewise; None, and ``value_pool`` with it: the keys alone, in
            which MLA has its values (DeepSeek-V2, section 2.1.2).
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order: of key's dtype, or
            float8_e4m3fn, float8_e5m2 or int8 for rows of float16, bfloat16 or float32. Codes are rounded to nearest
            even and saturate at ±448, ±57344, ±127. A NaN stays one in fp8 and is 0 in int8.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise, of key_pool's dtype.
        slot_mapping: [num_tokens] int64, block · block_size + offset, each slot at most once; -1 = nowhere.
        key_scale: what a code of ``key_pool`` is multiplied by to be read: a number, or float32 [num_kv_heads]; both
            are given. Of an int8 pool also float32 [num_blocks, block_size, num_kv_heads], of any strides, which is
            made: the row's largest magnitude ÷ 127, hence 0 for zeros, and NaN for a row that holds a NaN.
        value_scale: likewise, of the same kind; without values it is not looked at.
        validate: look into ``slot_mapping``, which a GPU has to wait for.

    Raises:
        ValueError: a tensor's shape, device or strides do not fit; the message names the tensor and its shape. A scale
            that does not fit its pool, or, with ``validate``, a slot that is not in the pool or comes twice.
        TypeError: a dtype does not fit.
    """
    check_write(key, value, key_pool, value_pool, slot_mapping, key_scale, value_scale)
    if validate:
        check_slots(slot_mapping, key_pool.shape[0] * key_pool.shape[1])
    configuration = _configure(key, value, key_pool, key_scale)
    as_they_are = configuration.code == "bits"
    rows = [None if tensor is None else as_bits(tensor) if as_they_are else tensor for tensor in (key, value)]
    pools = [None if pool is None else as_bits(pool) for pool in (key_pool, value_pool)]
    scales = [scale if isinstance(scale, Tensor) else float(scale) for scale in (key_scale, value_scale)]
    num_tokens, num_kv_heads, head_dim = key.shape
    launch(
        cache_write_kernel,
        (triton.cdiv(num_tokens, configuration.block_t), num_kv_heads),
        configuration,
        (
            *(*rows, *pools, *scales, slot_mapping),
            *(*row_strides(key, 2), *row_strides(value, 2), *row_strides(key_pool, 3), *row_strides(value_pool, 3)),
            *(*scale_strides(key_scale), *scale_strides(value_scale)),
            *(num_tokens, key_pool.shape[1], head_dim, 0 if value is None else value.shape[2]),
        ),
    )


def _configure(key: Tensor, value: Tensor | None, pool: Tensor, scale: float | Tensor) -> WriteConfiguration:
    code = "bits" if key.dtype == pool.dtype else str(pool.dtype).removeprefix("torch.")
    row_dim = max(key.shape[2], 0 if value is None else value.shape[2])
    return WriteConfiguration(*move_tile(row_dim, key.device), code=code, scales=kind_of_scales(scale))
