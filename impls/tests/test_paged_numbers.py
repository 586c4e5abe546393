"""Numbers that no allocator can work with: refused by ours before an array is made or changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

CAPACITY = 8


@pytest.fixture
def allocator(our_paged: Any) -> Any:
    made = our_paged(CAPACITY, 2)
    made.allocate("a", [1, 2, 3])
    return made


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_blocks": 4.0},
        {"block_size": 2.5},
        {"num_blocks": 2**31},
        {"block_size": 2**31},
        {"num_reserved": -1},
        {"num_reserved": 2**31 - 4},
        {"num_host_blocks": -1},
        {"watermark": float("nan")},
    ],
)
def test_a_pool_that_no_int32_can_name_or_that_is_no_number_is_refused(our_paged: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        our_paged(**{"num_blocks": 4, "block_size": 2} | wrong)


@pytest.mark.parametrize("window", [-1, 2.5, 2**31])
def test_a_window_that_is_no_count_of_positions_is_refused(our_windowed: Any, window: Any) -> None:
    with pytest.raises(ValueError, match="window"):
        our_windowed(4, 2, window=window)


def test_a_window_without_a_null_block_is_refused(our_windowed: Any) -> None:
    with pytest.raises(ValueError, match=r"num_reserved \(0\) must be at least 1"):
        our_windowed(4, 2, window=3, num_reserved=0)


def test_only_the_windowed_allocator_takes_a_window(our_paged: Any) -> None:
    """The other one can cut back and swap, which blocks that were given back don't survive."""
    assert not hasattr(our_paged(4, 2), "window")
    with pytest.raises(TypeError, match="window"):
        our_paged(4, 2, window=3)


@pytest.mark.parametrize("method", ["truncate", "reserve"])
@pytest.mark.parametrize("num_tokens", [1.5, 1.0, "1", None])
def test_a_count_of_tokens_that_is_not_whole_is_refused(allocator: Any, method: str, num_tokens: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        getattr(allocator, method)("a", num_tokens)
    assert list(allocator.block_table("a")) == [0, 1]


@pytest.mark.parametrize("one", [np.uint8(1), np.int8(1), np.uint64(1), True])
def test_small_integers_of_numpy_are_counts_of_tokens(allocator: Any, one: Any) -> None:
    allocator.reserve("a", one)
    allocator.truncate("a", one)
    assert list(allocator.block_table("a")) == [0]
    assert allocator.num_free_blocks() == CAPACITY - 1


@pytest.mark.parametrize("num_tokens", [10**6, 2**31, 2**63 - 1, 2**64, 10**30])
def test_room_that_no_pool_has_is_out_of_memory(allocator: Any, num_tokens: int) -> None:
    assert not allocator.can_allocate(num_tokens)
    with pytest.raises(MemoryError):
        allocator.reserve("a", num_tokens)
    assert list(allocator.block_table("a")) == [0, 1]
    assert allocator.num_free_blocks() == CAPACITY - 2
