"""A right kernel for every way to store keys and values: 8-bit codes, scales a head or a token, latent attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from selftest.wrong.right_kernel import RightKernel

Tensor = torch.Tensor


class RightStorageKernel(RightKernel):
    features = RightKernel.features | {"int8", "mla", "head_scales", "token_scales"}

    def gather(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> tuple[Tensor, Tensor]:
        heads = [self.key_head(head, spec) for head in range(spec.num_q_heads)]
        key = self.rows(spec, pools.key, slots).float() * self.key_scale(spec, pools, slots)
        value = self.stored_values(spec, pools, slots).float() * self.value_scale(spec, pools, slots)
        return key[:, heads], value[:, heads]

    def stored_values(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        if spec.mla:
            return self.rows(spec, pools.key, slots)[..., : spec.value_dim_value]
        return self.rows(spec, pools.value, slots)

    def key_scale(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        return self.scale_at(spec, pools.key_scale, slots, spec.k_scale)

    def value_scale(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        return self.scale_at(spec, pools.key_scale if spec.mla else pools.value_scale, slots, spec.v_scale)

    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        """Broadcast to [len(slots), num_kv_heads, dim]."""
        if scales is None:
            return torch.tensor(one)
        return scales[None, :, None] if scales.dim() == 1 else self.rows(spec, scales, slots)[..., None]

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        parts = [(pools.key, key, pools.key_scale, spec.k_scale), (pools.value, value, pools.value_scale, spec.v_scale)]
        for pool, rows, scales, one in parts[: self.num_parts(spec)]:
            own = self.scale_of_rows(spec, rows, scales, one)
            codes = self.codes(rows, own, pool.dtype)
            for token, slot in enumerate(slot_mapping.tolist()):
                if slot >= 0:
                    pool[slot // spec.block_size, slot % spec.block_size] = codes[token]
                    if spec.kv_scales == "token" and scales is not None:
                        scales[slot // spec.block_size, slot % spec.block_size] = own[token, :, 0]

    def num_parts(self, spec: AttentionSpec) -> int:
        return 1 if spec.mla else 2

    def scale_of_rows(self, spec: AttentionSpec, rows: Tensor, scales: Tensor | None, one: float) -> Tensor:
        """Broadcast to [num_tokens, num_kv_heads, dim]: given, or made of each row."""
        if spec.kv_scales == "token":
            return self.magnitude(rows.float()) / 127
        return torch.tensor(one) if scales is None else scales[None, :, None]

    def magnitude(self, rows: Tensor) -> Tensor:
        return rows.abs().amax(-1, keepdim=True)

    def codes(self, rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Saturated codes of an 8-bit pool; other pools hold the rows as they are."""
        if dtype.itemsize > 1:
            return rows
        numbers = torch.where(scale == 0, 0.0, rows.float() / scale)
        return self.integers(numbers) if dtype == torch.int8 else self.floats(numbers, dtype)

    def integers(self, numbers: Tensor) -> Tensor:
        return self.round(numbers.nan_to_num(nan=0.0)).clamp(-127, 127).to(torch.int8)

    def round(self, numbers: Tensor) -> Tensor:
        return numbers.round()

    def floats(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        return numbers.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        parts = (pools.key, pools.value, pools.key_scale, pools.value_scale)
        for source, destination in copies:
            for part in (part for part in parts if part is not None and part.dim() > 1):
                part[destination] = part[source]
