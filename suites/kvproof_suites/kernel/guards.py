"""Memory around what an implementation is handed: whoever writes before or past a buffer writes there, and is seen.

An index that is negative, or one row too far, does not fault on most machines: it changes what lies beside the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from kvproof_impls.contract import KVPools

GUARD_BYTES = 1 << 16
"""On each side: more than a row of a pool, and than a block of most. A multiple of every alignment."""
PATTERN = 0x5A


@dataclass(frozen=True)
class Guarded:
    """A copy of a tensor with its strides, in the middle of an allocation of its own."""

    tensor: torch.Tensor
    memory: torch.Tensor
    """All of the allocation, uint8; between rows that are not packed it is guard as well."""
    before: torch.Tensor
    """Its bytes when it was handed out."""

    @property
    def has_changed(self) -> bool:
        return not torch.equal(self.memory, self.before)

    @property
    def is_left(self) -> bool:
        """Whether a byte outside of the tensor's own has changed."""
        inside = extent_bytes(self.tensor)
        changed = (self.memory != self.before).nonzero().flatten()
        return bool(((changed < GUARD_BYTES) | (changed >= GUARD_BYTES + inside)).any())


def guarded(tensor: torch.Tensor) -> Guarded:
    num_bytes = 2 * GUARD_BYTES + -(-extent_bytes(tensor) // 16) * 16
    memory = torch.full((num_bytes,), PATTERN, dtype=torch.uint8, device=tensor.device)
    first = GUARD_BYTES // tensor.element_size()
    copy = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), first)
    copy.copy_(tensor)
    return Guarded(copy, memory, memory.clone())


def extent_bytes(tensor: torch.Tensor) -> int:
    """From its first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def guarded_pools(pools: KVPools) -> tuple[KVPools, dict[str, Guarded]]:
    """The same contents between guards, and each part by name; with latent attention the keys hold the values."""
    latent = pools.value.data_ptr() == pools.key.data_ptr()
    given = {"key": pools.key, "value": pools.value, "key_scale": pools.key_scale, "value_scale": pools.value_scale}
    parts = {
        name: guarded(part) for name, part in given.items() if part is not None and not (latent and name == "value")
    }
    tensors = {name: part.tensor for name, part in parts.items()}
    if latent:
        tensors["value"] = tensors["key"][..., : pools.value.shape[-1]]
    return replace(pools, **tensors), parts


def left(parts: Mapping[str, Guarded]) -> list[str]:
    return [name for name, part in parts.items() if part.is_left]


def changed(parts: Mapping[str, Guarded]) -> list[str]:
    return [name for name, part in parts.items() if part.has_changed]
