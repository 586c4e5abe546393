"""Cache writes and block copies of the CPU kernel: each byte where it belongs, and no other byte touched."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from kvproof_kernels.cpu import copy_blocks, write_rows
from kvproof_kernels.cpu.moves import BYTES_A_THREAD

NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM = 5, 3, 2, 7


def pool_of(order, dtype):
    """Distinct numbers, seen as [num_blocks, block_size, num_kv_heads, dim]; gaps after each row with "gaps"."""
    shape = {
        "NHD": (NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM),
        "HND": (NUM_BLOCKS, HEADS, BLOCK_SIZE, DIM),
        "gaps": (NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM + 2),
    }[order]
    storage = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    return storage, storage.transpose(1, 2) if order == "HND" else storage[..., :DIM]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", ["NHD", "HND", "gaps"])
@pytest.mark.parametrize("fused", [False, True], ids=["dense rows", "rows of a fused projection"])
def test_a_write_changes_its_slots_and_nothing_else(order, dtype, fused):
    storage, pool = pool_of(order, dtype)
    rows = torch.randn(4, 3 * HEADS, DIM).to(dtype)[:, HEADS : 2 * HEADS]
    rows = rows if fused else rows.contiguous()
    slots = torch.tensor([7, -1, 0, 14])
    want = storage.clone()
    wanted = want.transpose(1, 2) if order == "HND" else want[..., :DIM]
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            wanted[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = row
    write_rows("key", rows, pool, slots)
    assert torch.equal(storage, want)


def test_a_write_by_several_threads_reaches_every_slot(monkeypatch):
    monkeypatch.setattr("kvproof_kernels.cpu.moves.num_threads", lambda: 3)
    num_tokens = 4 * BYTES_A_THREAD // (4 * 2 * 64) + 1
    rows, pool = torch.randn(num_tokens, 2, 64), torch.zeros(num_tokens, 1, 2, 64)
    slots = torch.randperm(num_tokens)
    write_rows("key", rows, pool, slots)
    assert torch.equal(pool[slots, 0], rows)


def test_a_slot_mapping_may_have_any_stride():
    _, pool = pool_of("NHD", torch.float32)
    rows = torch.randn(2, HEADS, DIM)
    write_rows("key", rows, pool, torch.tensor([4, 99, 6, 99])[::2])
    assert torch.equal(pool[[1, 2], [1, 0]], rows)


@pytest.mark.parametrize("order", ["NHD", "HND", "gaps"])
def test_a_copy_changes_its_destinations_and_nothing_else(order):
    storage, pool = pool_of(order, torch.bfloat16)
    want = storage.clone()
    for source, destination in ((0, 4), (0, 1)):
        target = want[destination] if order != "gaps" else want[destination][..., :DIM]
        target.copy_(storage[source] if order != "gaps" else storage[source][..., :DIM])
    copy_blocks(pool, [(0, 4), (0, 1)])
    assert torch.equal(storage, want)


def test_no_tokens_and_no_copies_change_nothing():
    storage, pool = pool_of("NHD", torch.float32)
    want = storage.clone()
    write_rows("key", torch.empty(0, HEADS, DIM), pool, torch.empty(0, dtype=torch.int64))
    copy_blocks(pool, [])
    assert torch.equal(storage, want)


WRITE = {
    "name": "key",
    "rows": torch.zeros(2, HEADS, DIM),
    "pool": torch.zeros(NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM),
    "slot_mapping": torch.tensor([0, 1]),
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rows": torch.zeros(3, HEADS, DIM)}, ValueError, r"key \[3, 2, 7\] must be \[2, 2, 7\]"),
        ({"rows": torch.zeros(2, DIM)}, ValueError, r"key \[2, 7\] must be \[2, 2, 7\]"),
        ({"rows": torch.zeros(2, HEADS, DIM).half()}, TypeError, r"key is torch.float16, key_pool torch.float32"),
        ({"rows": torch.zeros(2, DIM, HEADS).mT}, ValueError, r"key \[2, 2, 7\] has last stride 2; it must be 1"),
        ({"pool": torch.zeros(15, HEADS, DIM)}, ValueError, r"key_pool \[15, 2, 7\] must have 4 dims"),
        ({"slot_mapping": torch.tensor([[0, 1]])}, ValueError, r"slot_mapping \[1, 2\] must have 1 dims"),
        ({"slot_mapping": torch.tensor([0, 1]).int()}, TypeError, r"slot_mapping \[2\] is torch.int32"),
        ({"slot_mapping": torch.tensor([0, 15])}, ValueError, r"slot_mapping \[2\]: slot 15 of token 1 is outside"),
        ({"slot_mapping": torch.tensor([-2, 0])}, ValueError, r"slot_mapping \[2\]: slot -2 of token 0 is outside"),
        (
            {"slot_mapping": torch.zeros(2, dtype=torch.int64, device="meta")},
            ValueError,
            r"slot_mapping \[2\] is on meta",
        ),
    ],
)
def test_a_write_names_what_it_refuses_before_it_stores_anything(changes, error, message):
    given = {**WRITE, **changes}
    before = given["pool"].fill_(5).clone()
    with pytest.raises(error, match=message):
        write_rows(**given)
    assert torch.equal(given["pool"], before)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([(0, 5)], r"copies \[\(0, 5\)\]: a block is outside the pool of 5 blocks"),
        ([(1, 2), (-1, 0)], r"copies \[\(-1, 0\)\]: a block is outside the pool of 5 blocks"),
        ([(0, 1), (1, 2)], "a destination is another pair's source or destination"),
        ([(0, 1), (2, 1)], "a destination is another pair's source or destination"),
    ],
)
def test_a_copy_names_what_it_refuses(copies, message):
    with pytest.raises(ValueError, match=message):
        copy_blocks(WRITE["pool"], copies)
