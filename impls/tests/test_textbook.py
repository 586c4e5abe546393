"""The textbook allocator has the three omissions that it is there to show, and is right otherwise."""

from __future__ import annotations

import pytest

from kvproof_impls.textbook import TextbookAllocator


def test_a_failed_allocate_keeps_the_blocks_it_took() -> None:
    allocator = TextbookAllocator(2, 4)
    with pytest.raises(MemoryError):
        allocator.allocate("a", [0] * 12)
    assert allocator.num_free_blocks() == 0


def test_an_id_allocated_twice_leaks_the_first_table() -> None:
    allocator = TextbookAllocator(4, 4)
    allocator.allocate("a", [0] * 4)
    allocator.allocate("a", [0] * 4)
    allocator.free("a")
    assert allocator.num_free_blocks() == 3


def test_append_never_copies_what_fork_has_shared() -> None:
    allocator = TextbookAllocator(4, 4)
    allocator.allocate("a", [0] * 3)
    allocator.fork("a", "b")
    assert allocator.append("b", [1]) == []
    assert allocator.block_table("a") == allocator.block_table("b")


def test_a_prompt_that_fills_its_blocks_grows_before_the_next_write() -> None:
    allocator = TextbookAllocator(8, 16)
    allocator.allocate("s", [0] * 32)
    assert len(allocator.block_table("s")) == 2
    for token in range(3):
        allocator.append("s", [token])
    assert len(allocator.block_table("s")) == 3


def test_the_last_owner_returns_a_shared_block() -> None:
    allocator = TextbookAllocator(4, 4)
    allocator.allocate("a", [0] * 8)
    allocator.fork("a", "b")
    allocator.free("a")
    assert allocator.num_free_blocks() == 2
    allocator.free("b")
    assert allocator.num_free_blocks() == 4


@pytest.mark.parametrize("call", ["append", "fork", "free", "block_table"])
def test_an_unknown_id_is_an_error(call: str) -> None:
    args = {"append": ([0],), "fork": ("b",)}.get(call, ())
    with pytest.raises(KeyError):
        getattr(TextbookAllocator(4, 4), call)("ghost", *args)


def test_a_failed_append_changes_nothing() -> None:
    allocator = TextbookAllocator(2, 2)
    allocator.allocate("a", [0, 0])
    with pytest.raises(MemoryError):
        allocator.append("a", [0] * 4)
    assert allocator.num_free_blocks() == 1
    allocator.append("a", [0, 0])
