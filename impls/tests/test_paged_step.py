"""What our allocator's step promises beyond the laws: how it pads, what it names, what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest


def test_rows_are_padded_with_zeros(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    allocator.allocate("wide", [1] * 5)
    allocator.allocate("narrow", [1])
    batch = allocator.append_step(["narrow", "wide"], [7, 7])
    assert batch.block_tables[:, :3].tolist() == [[3, 0, 0], [0, 1, 2]]
    assert not batch.block_tables[:, 3:].any()
    assert batch.slot_mapping.tolist() == [7, 5]


def test_an_earlier_step_keeps_its_tensors(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    allocator.allocate("a", [1])
    first = allocator.append_step(["a"], [2])
    allocator.append_step(["a"], [3])
    assert first.slot_mapping.tolist() == [1]
    assert first.context_lens.tolist() == [2]


def test_the_last_owner_in_a_step_writes_in_place(our_paged: Any) -> None:
    allocator = our_paged(4, 4)
    allocator.allocate("a", [1])
    allocator.fork("a", "b")
    allocator.fork("a", "c")
    batch = allocator.append_step("abc", [1, 2, 3])
    assert batch.copies == [(0, 1), (0, 2)]
    assert allocator.block_table("c") == [0]


def test_reserved_room_is_not_counted_as_growth(our_paged: Any) -> None:
    allocator = our_paged(3, 2)
    allocator.allocate("a", [1, 2])
    allocator.reserve("a", 2)
    allocator.fork("a", "b")
    allocator.allocate("filler", [9])
    with pytest.raises(MemoryError):
        allocator.append_step(["b", "a"], [1, 1])
    assert allocator.append_step(["a"], [1]).slot_mapping.tolist() == [2]


def test_a_step_without_room_names_the_rows_that_need_a_block(our_paged: Any) -> None:
    allocator = our_paged(3, 2)
    allocator.allocate("full", [1, 2])
    allocator.allocate("roomy", [1])
    allocator.allocate("filler", [1])
    with pytest.raises(MemoryError, match=r"needs 1 blocks for \['full'\].*no row was appended"):
        allocator.append_step(["roomy", "full"], [3, 3])


def test_rows_with_one_common_prompt_say_how_many_blocks_they_share(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    allocator.allocate("a", [1, 2, 3, 4])
    allocator.fork("a", "b")
    assert allocator.append_step("ab", [5, 6]).common_prefix_blocks == 2


def test_a_batch_of_no_rows_is_a_batch(our_paged: Any) -> None:
    batch = our_paged(4, 2).append_step([], [])
    assert batch.num_seqs == batch.num_tokens == 0
    assert batch.query_start.tolist() == [0]


def test_a_batch_is_committed_in_one_call_or_not_at_all(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    for seq, token in (("a", 1), ("b", 2)):
        allocator.allocate(seq, [token])
    allocator.append_step(["a", "b"], [5, 6])
    for refused in (["a", "nobody"], ["a", "b", "a"]):
        with pytest.raises(KeyError):
            allocator.commit_step(refused)
    assert allocator.cached_prefix([1, 5, 0]) == 0
    allocator.commit_step(["a", "b"])
    assert [allocator.cached_prefix([*tokens, 0]) for tokens in ([1, 5], [2, 6])] == [2, 2]
