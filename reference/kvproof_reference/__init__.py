"""The oracle: block allocator, dense attention, error budget and sizing, with the standard library alone."""

from kvproof_reference.allocator import ReferenceAllocator
from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention import attend, attention_rows
from kvproof_reference.attention_row import Row, score_row, visible_positions
from kvproof_reference.budget import lse_bound, output_bounds
from kvproof_reference.capacity import Capacity, capacity_rows, device_capacity
from kvproof_reference.formats import FORMATS, NumberFormat, number_format
from kvproof_reference.invariants import INVARIANTS, Invariant
from kvproof_reference.model_shape import ModelShape, max_model_len_from_config, shape_from_config
from kvproof_reference.sizing import (
    KV_FORMATS,
    KVFormat,
    Waste,
    block_bytes,
    capacity_tokens,
    contiguous_waste,
    fits_contiguously,
    kv_bytes_per_token,
    max_concurrency,
    num_admitted,
    num_blocks_for,
    num_divergence_copies,
    num_gpu_blocks,
    num_sampling_blocks,
    num_swap_blocks,
    paged_waste,
)

__all__ = [
    "FORMATS",
    "INVARIANTS",
    "KV_FORMATS",
    "Arithmetic",
    "Capacity",
    "Invariant",
    "KVFormat",
    "ModelShape",
    "NumberFormat",
    "ReferenceAllocator",
    "Row",
    "Waste",
    "attend",
    "attention_rows",
    "block_bytes",
    "capacity_rows",
    "capacity_tokens",
    "contiguous_waste",
    "device_capacity",
    "fits_contiguously",
    "kv_bytes_per_token",
    "lse_bound",
    "max_concurrency",
    "max_model_len_from_config",
    "num_admitted",
    "num_blocks_for",
    "num_divergence_copies",
    "num_gpu_blocks",
    "num_sampling_blocks",
    "num_swap_blocks",
    "number_format",
    "output_bounds",
    "paged_waste",
    "score_row",
    "shape_from_config",
    "visible_positions",
]
