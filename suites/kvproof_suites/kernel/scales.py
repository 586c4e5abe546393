"""What the codes of a pool mean: one scale for all of them, one a key head, or one a token and key head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_suites.kernel.pages import Pages

LARGEST_CODE = 127
NUM_POWERS = 4
"""1, 1/2, 1/4 and 1/8: under each of them a digit up to 8 is a code that every 8-bit format holds exactly."""


@dataclass(frozen=True)
class Scales:
    """What a code of each slot and key head is multiplied by, [num_slots, num_kv_heads] float32."""

    key: torch.Tensor
    value: torch.Tensor

    def at(self, slots: torch.Tensor) -> Scales:
        """Those of ``slots``, in their order."""
        return Scales(self.key[slots], self.value[slots])


def powers_of_two(pages: Pages, spec: AttentionSpec, generator: torch.Generator) -> Scales:
    """Scales by which exact data stay exact. No head has its neighbour's, and key and value of a head differ."""
    shape = (pages.num_slots, spec.num_kv_heads)
    if spec.kv_scales == "tensor":
        return Scales(torch.full(shape, spec.k_scale), torch.full(shape, spec.v_scale))
    if spec.kv_scales == "head":
        shift = int(torch.randint(NUM_POWERS, (), generator=generator))
        powers = torch.arange(spec.num_kv_heads).add(shift).expand(shape)
        powers = torch.stack([powers, powers + 2])
    else:
        powers = torch.randint(NUM_POWERS, (2, *shape), generator=generator)
    key, value = 0.5 ** (powers % NUM_POWERS).float()
    return Scales(key, key if spec.mla else value)


def draw_scales(pages: Pages, spec: AttentionSpec, generator: torch.Generator) -> Scales | None:
    """Ordinary scales, which make of ordinary codes numbers of about 1; None where the spec has the only two."""
    if spec.kv_scales == "tensor":
        return None
    drawn = (2.0 ** (2 * torch.rand(2, pages.num_slots, spec.num_kv_heads, generator=generator) - 1)) / unit(spec)
    key, value = drawn[:, :1].expand_as(drawn).clone() if spec.kv_scales == "head" else drawn
    return Scales(key, key if spec.mla else value)


def unit(spec: AttentionSpec) -> float:
    """The code that stands for about 1 in drawn data."""
    return 32.0 if spec.kv_dtype == "int8" else 1.0


def codes(numbers: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """``numbers`` of about 1 as what a pool of ``spec`` can hold, in the query's type, which holds every code."""
    if spec.kv_dtype == "int8":
        stored = (numbers * unit(spec)).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    else:
        stored = numbers.to(getattr(torch, spec.kv_dtype or spec.dtype))
    return stored.to(getattr(torch, spec.dtype))


def with_strided_scales(pools: KVPools) -> tuple[KVPools, torch.Tensor]:
    """The same pools, their scales a token copied between others: K's, V's and NaN block by block, in one tensor
    [num_blocks, 3, block_size, num_kv_heads]."""
    assert pools.key_scale is not None
    assert pools.value_scale is not None
    num_blocks, *rest = pools.key_scale.shape
    storage = pools.key_scale.new_full((num_blocks, 3, *rest), torch.nan)
    storage[:, 0], storage[:, 1] = pools.key_scale, pools.value_scale
    value_scale = storage[:, 0] if pools.value_scale is pools.key_scale else storage[:, 1]
    return replace(pools, key_scale=storage[:, 0], value_scale=value_scale), storage


def scale_pools(
    scales: Scales | None, spec: AttentionSpec, pages: Pages, device: str
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """``key_scale`` and ``value_scale`` of the contract's ``KVPools``."""
    if scales is None or spec.kv_scales == "tensor":
        return None, None
    if spec.kv_scales == "head":
        return scales.key[0].to(device), scales.value[0].to(device)
    shape = (pages.num_blocks, pages.block_size, spec.num_kv_heads)
    key = scales.key.view(shape).to(device, copy=True)
    return key, key if spec.mla else scales.value.view(shape).to(device, copy=True)
