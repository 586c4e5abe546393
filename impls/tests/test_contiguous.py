"""The allocators that paging is compared with waste just what they are known to waste."""

from __future__ import annotations

import pytest

from kvproof_impls.contiguous import MaxAllocator, OracleAllocator, Pow2Allocator
from kvproof_impls.contiguous.allocator import ContiguousAllocator
from kvproof_impls.contract import BlockAllocator
from kvproof_impls.registry import load

LENGTHS = (40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110)
every_variant = pytest.mark.parametrize("variant", [MaxAllocator, Pow2Allocator, OracleAllocator])


def num_admitted(allocator: BlockAllocator, **limits: int) -> int:
    """Requests admitted in order until the first that does not fit."""
    for num_live, length in enumerate(LENGTHS):
        try:
            allocator.allocate(num_live, [0] * length, **{name: length + more for name, more in limits.items()})
        except MemoryError:
            return num_live
    return len(LENGTHS)


def test_4_sequences_fit_where_paging_fits_13() -> None:
    paged = load("paged-python").allocator
    assert paged is not None
    assert num_admitted(MaxAllocator(128, 16, max_model_len=512)) == 4
    assert num_admitted(paged(128, 16)) == 13


def test_with_known_lengths_11_fit() -> None:
    assert num_admitted(OracleAllocator(128, 16, max_model_len=512), max_tokens=0) == 11


def test_the_maximum_is_reserved_in_consecutive_blocks() -> None:
    allocator = MaxAllocator(256, 16, max_model_len=2048)
    allocator.allocate("a", [0] * 30, max_tokens=40)
    assert list(allocator.block_table("a")) == list(range(128))
    assert allocator.num_reserved_tokens("a") - 30 == 2018


@every_variant
def test_a_request_that_states_no_limit_reserves_a_quarter_of_the_pool(variant: type[ContiguousAllocator]) -> None:
    allocator = variant(128, 16)
    allocator.allocate("a", [0] * 30)
    assert allocator.num_reserved_tokens("a") == allocator.max_model_len == 512


@pytest.mark.parametrize(("num_output_tokens", "reserved"), [(1, 1), (25, 32), (32, 32), (33, 64)])
def test_pow2_reserves_at_most_twice_the_output(num_output_tokens: int, reserved: int) -> None:
    allocator = Pow2Allocator(1024, 1, max_model_len=512)
    allocator.allocate("a", [0] * 100, max_tokens=100 + num_output_tokens)
    assert allocator.num_reserved_tokens("a") == 100 + reserved


def test_no_guess_is_longer_than_the_model_allows() -> None:
    allocator = Pow2Allocator(1024, 1, max_model_len=512)
    allocator.allocate("a", [0] * 100, max_tokens=400)
    assert allocator.num_reserved_tokens("a") == 512


def test_a_prompt_of_1024_takes_2048_slots_from_the_oracle_too() -> None:
    """The paper's chatbot, section 6.5: the buddy system rounds 1,025 up, so that the three variants are alike."""
    allocator = OracleAllocator(2048, 1, max_model_len=2048)
    allocator.allocate("a", [0] * 1024, max_tokens=1025)
    assert (allocator.num_reserved_tokens("a"), allocator.num_free_blocks()) == (1025, 0)


def test_free_blocks_that_are_no_buddies_are_of_no_use() -> None:
    allocator = OracleAllocator(16, 4, max_model_len=32)
    for seq in range(4):
        allocator.allocate(seq, [0], max_tokens=16)
    allocator.free(1)
    allocator.free(2)
    assert allocator.num_free_blocks() == 8
    with pytest.raises(MemoryError, match="no run of 8 consecutive blocks is free, though 8 are in all"):
        allocator.allocate("b", [0], max_tokens=32)
    assert not allocator.can_allocate(1)
    allocator.allocate("b", [0], max_tokens=16)


@every_variant
def test_a_sequence_that_outgrows_its_reservation_is_refused_and_unchanged(variant: type[ContiguousAllocator]) -> None:
    allocator = variant(4, 4, max_model_len=4)
    allocator.allocate("a", [1, 2, 3], max_tokens=4)
    with pytest.raises(MemoryError, match="5 tokens of 'a' don't fit in the 4"):
        allocator.append("a", [4, 5])
    allocator.append("a", [4])


def test_a_request_holds_to_what_it_said_though_rounding_left_it_room() -> None:
    allocator = OracleAllocator(8, 4, max_model_len=32)
    allocator.allocate("a", [0] * 8, max_tokens=9)
    assert len(allocator.block_table("a")) == 4
    allocator.append("a", [0])
    with pytest.raises(MemoryError, match="10 tokens of 'a' don't fit in the 9"):
        allocator.append("a", [0])


@every_variant
@pytest.mark.parametrize(("max_tokens", "error"), [(0, ValueError), (2, ValueError), (9, MemoryError)])
def test_a_limit_that_can_not_be_takes_nothing(variant: type, max_tokens: int, error: type[Exception]) -> None:
    allocator = variant(4, 4, max_model_len=8)
    with pytest.raises(error, match=f"{max_tokens}.*'a'"):
        allocator.allocate("a", [1, 2, 3], max_tokens=max_tokens)
    assert allocator.num_free_blocks() == 4
    with pytest.raises(KeyError):
        allocator.block_table("a")


def test_a_model_for_which_the_pool_has_no_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_model_len \(0\)"):
        MaxAllocator(4, 4, max_model_len=0)
    with pytest.raises(ValueError, match="needs 32 consecutive blocks of 4; a pool of 24 has no longer run than 16"):
        MaxAllocator(24, 4, max_model_len=68)
