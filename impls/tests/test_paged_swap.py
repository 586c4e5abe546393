"""What our allocator's swapping promises beyond the laws: what goes to the host, and what stays findable."""

from __future__ import annotations

from typing import Any

import pytest


def test_copies_pair_logical_blocks_both_ways(our_paged: Any) -> None:
    allocator = our_paged(4, 2, num_host_blocks=4)
    allocator.allocate("a", [1, 2, 3])
    assert list(allocator.swap_out("a")) == [(0, 0), (1, 1)]
    allocator.allocate("b", [9])
    assert list(allocator.swap_in("a")) == [(0, 1), (1, 2)]
    assert allocator.block_table("a") == [1, 2]


def test_look_ahead_stays_behind(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    allocator.allocate("a", [1])
    allocator.reserve("a", 4)
    assert len(allocator.swap_out("a")) == 1
    assert allocator.num_free_blocks() == 4


def test_published_blocks_stay_findable_while_their_sequence_is_away(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    allocator.allocate("a", [1, 2, 3])
    allocator.commit("a")
    allocator.swap_out("a")
    assert allocator.cached_prefix([1, 2, 3]) == 2


def test_a_sequence_that_came_back_is_published_again(our_paged: Any) -> None:
    allocator = our_paged(3, 2)
    allocator.allocate("a", [1, 2, 3])
    allocator.commit("a")
    allocator.swap_out("a")
    allocator.allocate("pressure", [9] * 6)
    allocator.free("pressure")
    allocator.swap_in("a")
    assert allocator.cached_prefix([1, 2, 3]) == 0
    allocator.commit("a")
    assert allocator.cached_prefix([1, 2, 3]) == 2


def test_a_host_without_blocks_refuses_and_says_so(our_paged: Any) -> None:
    allocator = our_paged(4, 2, num_host_blocks=1)
    allocator.allocate("a", [1, 2, 3])
    with pytest.raises(MemoryError, match="2 host blocks needed, 1 of 1 free"):
        allocator.swap_out("a")
    assert allocator.block_table("a") == [0, 1]


@pytest.mark.parametrize("method", ["append", "fork", "truncate", "commit", "block_table", "swap_out"])
def test_a_sequence_on_the_host_has_no_device_operation(our_paged: Any, method: str) -> None:
    allocator = our_paged(4, 2)
    allocator.allocate("a", [1, 2, 3])
    allocator.swap_out("a")
    arguments = {"append": ([1],), "fork": ("b",), "truncate": (0,)}.get(method, ())
    with pytest.raises(KeyError):
        getattr(allocator, method)("a", *arguments)
