"""The capacity of one deployment, worked out from the flags that vLLM takes, and the rows that report it."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof_reference.model_shape import ModelShape
from kvproof_reference.sizing import (
    DEFAULT_UTILISATION,
    GIB,
    KV_FORMATS,
    block_bytes,
    capacity_tokens,
    kv_bytes_per_token,
    max_concurrency,
    num_blocks_for,
    num_gpu_blocks,
    num_swap_blocks,
)


@dataclass(frozen=True)
class Capacity:
    """What one device has room for."""

    block_size: int
    kv_cache_dtype: str
    max_model_len: int
    bytes_per_token: int
    bytes_per_block: int
    num_gpu_blocks: int
    num_swap_blocks: int

    @property
    def max_blocks_per_sequence(self) -> int:
        return num_blocks_for(self.max_model_len, self.block_size)

    @property
    def capacity_tokens(self) -> int:
        return capacity_tokens(self.num_gpu_blocks, self.block_size)

    @property
    def max_concurrency(self) -> float:
        """Sequences of max_model_len tokens; below 1 not even one fits."""
        return max_concurrency(self.num_gpu_blocks, self.block_size, self.max_model_len)


def device_capacity(
    shape: ModelShape,
    *,
    memory_bytes: int,
    weight_bytes: int,
    max_model_len: int,
    block_size: int = 16,
    kv_cache_dtype: str = "bfloat16",
    gpu_memory_utilization: float = DEFAULT_UTILISATION,
    activation_bytes: int = 0,
    graph_bytes: int = 0,
    swap_bytes: int = 0,
) -> Capacity:
    """Capacity of one device whose share of the model is ``shape`` and ``weight_bytes``.

    Raises:
        ValueError: an unknown kv_cache_dtype, a number out of range, or no room for a single block.
    """
    if kv_cache_dtype not in KV_FORMATS:
        raise ValueError(f"unknown kv-cache-dtype {kv_cache_dtype!r}; known: {', '.join(KV_FORMATS)}")
    if max_model_len < 1:
        raise ValueError(f"max-model-len must be at least 1, got {max_model_len}")
    bytes_per_token = kv_bytes_per_token(shape, KV_FORMATS[kv_cache_dtype])
    bytes_per_block = block_bytes(bytes_per_token, block_size)
    num_blocks = num_gpu_blocks(
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        bytes_per_block=bytes_per_block,
        activation_bytes=activation_bytes,
        graph_bytes=graph_bytes,
        utilisation=gpu_memory_utilization,
    )
    num_swap = num_swap_blocks(swap_bytes, bytes_per_block)
    return Capacity(block_size, kv_cache_dtype, max_model_len, bytes_per_token, bytes_per_block, num_blocks, num_swap)


def capacity_rows(found: Capacity) -> list[tuple[str, str]]:
    """(label, value with unit), ending like vLLM's start-up log: capacity in tokens, maximum concurrency."""
    pool_bytes = found.num_gpu_blocks * found.bytes_per_block
    swap_tokens = capacity_tokens(found.num_swap_blocks, found.block_size)
    return [
        ("KV bytes a token", f"{found.bytes_per_token:,} B ({found.bytes_per_token / 2**20:.4g} MiB)"),
        (f"KV bytes a block of {found.block_size} tokens", f"{found.bytes_per_block:,} B"),
        ("kv-cache-dtype", found.kv_cache_dtype),
        ("num_gpu_blocks", f"{found.num_gpu_blocks:,} ({pool_bytes / GIB:.2f} GiB)"),
        ("swap-space", f"{found.num_swap_blocks:,} blocks ({swap_tokens:,} tokens)"),
        ("max-model-len", f"{found.max_model_len:,} tokens ({found.max_blocks_per_sequence:,} blocks a sequence)"),
        ("GPU KV cache size", f"{found.capacity_tokens:,} tokens"),
        (f"Maximum concurrency for {found.max_model_len:,} tokens a request", f"{found.max_concurrency:.2f}x"),
    ]
