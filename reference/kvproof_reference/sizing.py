"""How much memory a KV cache takes, how many blocks a device has room for, and what contiguous reservation wastes.

Units are in the names. A *token* is one position of one sequence over all layers, a *slot* room for one token, a
*block* ``block_size`` slots.

Source: Kwon et al., PagedAttention (SOSP 2023), sections 3 and 4; vLLM's profiling at start-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvproof_reference.model_shape import ModelShape

GIB = 2**30
DEFAULT_UTILISATION = 0.92
"""Share of the device's memory that vLLM takes for itself."""
WHOLE_VECTOR = 2**31
"""As ``elements_per_scale``: one scale for the K, one for the V of each token and head."""


@dataclass(frozen=True)
class KVFormat:
    """How an element of K or V is stored."""

    element_bytes: int
    elements_per_scale: int | None = None
    """Neighbours in one vector that share a stored scale; None: no scales a token (one a tensor takes no room)."""
    scale_bytes: int = 4
    rope_element_bytes: int | None = None
    """MLA: of the rotary part, which has no scale; None: stored like the latent."""

    def vector_bytes(self, dim: int) -> int:
        """One vector with its scales."""
        num_scales = 0 if self.elements_per_scale is None else math.ceil(dim / self.elements_per_scale)
        return dim * self.element_bytes + num_scales * self.scale_bytes


KV_FORMATS: Mapping[str, KVFormat] = {
    "float16": KVFormat(2),
    "bfloat16": KVFormat(2),
    "float32": KVFormat(4),
    "fp8": KVFormat(1),
    "fp8_e4m3": KVFormat(1),
    "fp8_e5m2": KVFormat(1),
    "fp8_per_token_head": KVFormat(1, elements_per_scale=WHOLE_VECTOR),
    "int8_per_token_head": KVFormat(1, elements_per_scale=WHOLE_VECTOR),
    "fp8_ds_mla": KVFormat(1, elements_per_scale=128, rope_element_bytes=2),
}
"""Values of ``--kv-cache-dtype``."""


def kv_bytes_per_token(shape: ModelShape, kv_format: KVFormat) -> int:
    """Bytes of one token over all layers: K and V of each KV head, or the one latent and rotary part of MLA."""
    if shape.latent_rank is not None:
        rope_bytes = shape.rope_dim * (kv_format.rope_element_bytes or kv_format.element_bytes)
        return shape.num_layers * (kv_format.vector_bytes(shape.latent_rank) + rope_bytes)
    value_dim = shape.head_dim if shape.value_dim is None else shape.value_dim
    per_head = kv_format.vector_bytes(shape.head_dim) + kv_format.vector_bytes(value_dim)
    return shape.num_layers * shape.num_kv_heads * per_head


def block_bytes(bytes_per_token: int, block_size: int) -> int:
    """Bytes of one block over all layers."""
    return _positive("bytes_per_token", bytes_per_token) * _positive("block_size", block_size)


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that a sequence of ``num_tokens`` tokens holds; with max_model_len, what one sequence can need."""
    if num_tokens < 0:
        raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
    return -(-num_tokens // _positive("block_size", block_size))


def num_gpu_blocks(
    *,
    memory_bytes: int,
    weight_bytes: int,
    bytes_per_block: int,
    activation_bytes: int = 0,
    graph_bytes: int = 0,
    utilisation: float = DEFAULT_UTILISATION,
) -> int:
    """floor((utilisation · memory - weights - activations - graphs) / bytes a block), for one device.

    Raises:
        ValueError: utilisation outside (0, 1], or no room for a single block.
    """
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must lie in (0, 1], got {utilisation}")
    budget = Fraction(str(utilisation)) * memory_bytes  # 0.92 as written, not as the nearest double
    left = budget - weight_bytes - activation_bytes - graph_bytes
    num_blocks = left // _positive("bytes_per_block", bytes_per_block)
    if num_blocks < 1:
        raise ValueError(
            f"no room for a KV block of {bytes_per_block} bytes: {utilisation} of {memory_bytes / GIB:.2f} GiB less "
            f"weights {weight_bytes / GIB:.2f}, activations {activation_bytes / GIB:.2f} and graphs "
            f"{graph_bytes / GIB:.2f} GiB leaves {float(left) / GIB:.2f} GiB; raise gpu-memory-utilization, "
            "quantise the weights or use more devices"
        )
    return num_blocks


def num_swap_blocks(swap_bytes: int, bytes_per_block: int) -> int:
    """Blocks that swap space on the host holds."""
    if swap_bytes < 0:
        raise ValueError(f"swap_bytes must not be negative, got {swap_bytes}")
    return swap_bytes // _positive("bytes_per_block", bytes_per_block)


def capacity_tokens(num_blocks: int, block_size: int) -> int:
    """Tokens that the pool holds at most: its slots."""
    return num_blocks * block_size


def max_concurrency(num_blocks: int, block_size: int, num_tokens: int) -> float:
    """Sequences of ``num_tokens`` tokens held at once: capacity / length, the length in whole blocks."""
    return num_blocks / num_blocks_for(_positive("num_tokens", num_tokens), block_size)


@dataclass(frozen=True)
class Waste:
    """Slots that a sequence keeps from others without using them."""

    num_used_slots: int
    num_held_slots: int

    @property
    def num_wasted_slots(self) -> int:
        return self.num_held_slots - self.num_used_slots

    @property
    def fraction(self) -> float:
        return self.num_wasted_slots / self.num_held_slots if self.num_held_slots else 0.0


def contiguous_waste(num_reserved: int, num_used: int) -> Waste:
    """Of a reservation of ``num_reserved`` slots for a sequence that ends with ``num_used`` tokens."""
    if not 0 <= num_used <= num_reserved:
        raise ValueError(f"a reservation of {num_reserved} slots can't hold {num_used} tokens")
    return Waste(num_used, num_reserved)


def paged_waste(num_used: int, block_size: int) -> Waste:
    """Of the last block, which may be partly filled."""
    return Waste(num_used, num_blocks_for(num_used, block_size) * block_size)


def num_admitted(needs: Iterable[int], capacity: int) -> int:
    """How many are admitted first in, first out, stopping at the first that doesn't fit."""
    admitted, used = 0, 0
    for need in needs:
        if used + need > capacity:
            break
        admitted, used = admitted + 1, used + need
    return admitted


def fits_contiguously(request_bytes: int, hole_bytes: Iterable[int]) -> bool:
    """External fragmentation: a contiguous request needs one hole that is large enough, whatever their sum."""
    return any(hole >= request_bytes for hole in hole_bytes)


def num_sampling_blocks(num_prompt: int, num_output: int, num_samples: int, block_size: int) -> int:
    """Blocks of ``num_samples`` continuations of one prompt: its complete blocks once, the rest a sample each."""
    num_shared = num_prompt // _positive("block_size", block_size)
    return num_shared + num_samples * (num_blocks_for(num_prompt + num_output, block_size) - num_shared)


def num_divergence_copies(num_prompt: int, num_samples: int, block_size: int) -> int:
    """Blocks copied when all samples have written: the partly filled prompt block, once for all but the last writer."""
    return num_samples - 1 if num_prompt % block_size and num_samples else 0


def _positive(name: str, number: int) -> int:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number
