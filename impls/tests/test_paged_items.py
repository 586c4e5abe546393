"""Items, such as images, behind placeholder tokens that are alike: what is cut off, moved away or forgotten of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

CAT = ((1, 2, "cat"),)
PROMPT = [1, 99, 99, 5, 0]


def found(allocator: Any) -> tuple[int, int]:
    return allocator.cached_prefix(PROMPT, (), CAT), allocator.cached_prefix(PROMPT)


@pytest.fixture
def allocator(our_paged: Any) -> Any:
    made = our_paged(8, 4)
    made.allocate("a", [1, 99, 99], (), CAT)
    return made


@pytest.mark.parametrize(("num_kept", "text", "plain"), [(1, [99, 99, 5], 4), (2, [99, 5], 0), (3, [5], 0)])
def test_what_is_written_where_an_item_was_cut_off_is_no_item(
    allocator: Any, num_kept: int, text: list[int], plain: int
) -> None:
    allocator.truncate("a", num_kept)
    allocator.append("a", text)
    allocator.commit("a")
    assert found(allocator) == (4 if num_kept == 3 else 0, plain)


def test_a_cut_is_its_own_while_a_fork_keeps_the_item(allocator: Any) -> None:
    allocator.fork("a", "b")
    allocator.truncate("a", 1)
    allocator.fork("a", "c")
    for seq, text in (("a", [99, 99, 6]), ("b", [5]), ("c", [99, 99, 5])):
        allocator.append(seq, text)
        allocator.commit(seq)
    assert found(allocator) == (4, 4)
    assert allocator.cached_prefix([1, 99, 99, 6, 0]) == 4
    assert allocator.cached_prefix([1, 99, 99, 6, 0], (), CAT) == 0


@pytest.mark.parametrize("cuts", [(2, 1), (2, 2), (1,)])
def test_a_cut_is_remembered_on_the_host_and_through_other_cuts(allocator: Any, cuts: tuple[int, ...]) -> None:
    for num_kept in cuts:
        allocator.truncate("a", num_kept)
    allocator.swap_out("a")
    allocator.swap_in("a")
    allocator.append("a", PROMPT[cuts[-1] : 4])
    allocator.commit("a")
    assert found(allocator) == (0, 4 if cuts[-1] == 1 else 0)


def test_two_sequences_cut_at_the_same_place_share_what_they_write(our_paged: Any) -> None:
    allocator = our_paged(8, 4)
    for seq in "ab":
        allocator.allocate(seq, [1, 99, 99, 7], (), CAT)
        allocator.truncate(seq, 2)
        allocator.append(seq, [99, 5, 8, 8, 8, 8])
        allocator.commit(seq)
    allocator.free("a")
    assert allocator.num_free_blocks() == 8 - 2


@pytest.mark.parametrize("item", [(0.5, 1, "cat"), (-1, 1, "cat"), (0, 0, "cat"), (0, 1.0, "cat"), (2, 2, "cat")])
def test_an_item_without_a_place_is_refused(our_paged: Any, item: Any) -> None:
    allocator = our_paged(8, 4)
    with pytest.raises(ValueError, match="item"):
        allocator.allocate("a", [1, 2, 3], (), (item,))
    assert allocator.num_free_blocks() == 8


def test_the_type_of_a_number_says_nothing_of_where_an_item_stands(our_paged: Any) -> None:
    allocator = our_paged(8, 4)
    allocator.allocate("a", PROMPT, (), ((np.int64(1), np.int32(2), "cat"),))
    allocator.commit("a")
    assert found(allocator) == (4, 0)


def test_a_key_is_remembered_while_its_sequence_is_on_the_host(our_paged: Any) -> None:
    allocator = our_paged(8, 4)
    allocator.allocate("away", PROMPT, ("tenant",), CAT)
    allocator.swap_out("away")
    for visitor in range(1_100):
        allocator.allocate("v", [1], ("visitor", visitor))
        allocator.free("v")
    allocator.swap_in("away")
    allocator.commit("away")
    assert allocator.cached_prefix(PROMPT, ("tenant",), CAT) == 4
