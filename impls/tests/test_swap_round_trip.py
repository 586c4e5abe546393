"""What an allocator says of a swap and what the kernels do of it fit: a sequence comes back with what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.swap import host_pool, swap_blocks

BLOCK_SIZE = 4


def slots_of(allocator: Any, seq: str, num_tokens: int) -> torch.Tensor:
    table: Sequence[int] = allocator.block_table(seq)
    return torch.tensor([table[t // BLOCK_SIZE] * BLOCK_SIZE + t % BLOCK_SIZE for t in range(num_tokens)])


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.int8], ids=str)
def test_a_sequence_that_was_swapped_out_has_what_was_written(our_paged: Any, kv_dtype: torch.dtype) -> None:
    allocator = our_paged(6, BLOCK_SIZE, num_host_blocks=6)
    device = {f"{name}_pool": torch.zeros(6, BLOCK_SIZE, 2, 48, dtype=kv_dtype) for name in ("key", "value")}
    if kv_dtype == torch.int8:
        device |= {f"{name}_scale": torch.zeros(6, BLOCK_SIZE, 2) for name in ("key", "value")}
    host = [host_pool(pool, 6) for pool in device.values()]

    def write(seq: str, num_tokens: int) -> None:
        rows = torch.randn(num_tokens, 2, 96).half()
        write_cache(rows[..., :48], rows[..., 48:], slot_mapping=slots_of(allocator, seq, num_tokens), **device)

    def read(num_tokens: int) -> list[torch.Tensor]:
        slots = slots_of(allocator, "a", num_tokens)
        return [pool[slots // BLOCK_SIZE, slots % BLOCK_SIZE].clone() for pool in device.values()]

    allocator.allocate("a", list(range(14)))
    write("a", 14)
    written = read(14)
    swap_blocks(list(device.values()), host, allocator.swap_out("a"))
    allocator.allocate("b", list(range(100, 124)))
    write("b", 24)  # every block of the device
    allocator.free("b")
    swap_blocks(host, list(device.values()), allocator.swap_in("a"))
    assert all(torch.equal(now, before) for now, before in zip(read(14), written, strict=True))
