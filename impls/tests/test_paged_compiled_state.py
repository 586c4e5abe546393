"""The compiled allocator is handed addresses: what copies it, and what fails in it, leaves them where they belong."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from kvproof_impls.paged import PagedAllocator, WindowedAllocator
from kvproof_impls.paged.layout import BLOCK, LARGEST


def through_pickle(allocator: Any) -> Any:
    return pickle.loads(pickle.dumps(allocator))


def through_buffers(allocator: Any) -> Any:
    """As shared memory and distributed frameworks send arrays: by reference."""
    buffers: list[pickle.PickleBuffer] = []
    return pickle.loads(pickle.dumps(allocator, protocol=5, buffer_callback=buffers.append), buffers=buffers)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_buffers])
def test_a_copy_and_its_original_go_their_own_ways(copied: Callable[[Any], Any]) -> None:
    first = PagedAllocator(16, 2, max_num_seqs=2)
    for seq in "abc":
        first.allocate(seq, [ord(seq), 1, 2])
    first.commit("a")
    first.swap_out("b")
    first.append_step(["a", "c"], [5, 5])
    second = copied(first)
    tables = [first.block_table(seq) for seq in "ac"]
    second.append_step(["c", "a"], [7, 7])
    second.append("a", [8] * 6)
    second.free("c")
    second.swap_in("b")
    assert [first.block_table(seq) for seq in "ac"] == tables
    assert first.append_step(["a", "c"], [6, 6]).context_lens.tolist() == [5, 5]
    assert second.cached_prefix([ord("a"), 1, 0]) == first.cached_prefix([ord("a"), 1, 0]) == 2
    for allocator in (first, second):
        for seq in "abc":
            if allocator is first or seq != "c":
                allocator.free(seq)
        assert allocator.num_free_blocks() == 16


def test_a_shallow_copy_is_refused() -> None:
    with pytest.raises(TypeError, match=r"copy\.deepcopy"):
        copy.copy(PagedAllocator(4, 2))


def held(allocator: Any) -> tuple[int, ...]:
    """Addresses of the step tensors, of both sets."""
    return tuple(allocator.append_step(["a"], [1]).block_tables.data_ptr() for _ in range(2))


def test_the_first_items_move_no_step_tensor() -> None:
    allocator = PagedAllocator(64, 2, max_num_seqs=4, max_model_len=32)
    allocator.allocate("a", [1])
    before = held(allocator)
    allocator.allocate("b", [1, 2, 3], (), ((0, 1, "cat"),))
    assert held(allocator) == before
    allocator.commit("b")
    assert allocator.cached_prefix([1, 2, 3], (), ((0, 1, "cat"),)) == 2


@pytest.mark.parametrize(
    "refused",
    [
        lambda allocator: allocator.allocate("b", [1] * 9),
        lambda allocator: allocator.allocate("b", [1] * 500),
        lambda allocator: allocator.append("a", [1] * 50),
        lambda allocator: allocator.reserve("a", 50),
        lambda allocator: allocator.reserve("a", 10**9),
        lambda allocator: allocator.append_step(["a"], [1]),
    ],
)
def test_what_runs_out_of_blocks_moves_no_array(refused: Callable[[Any], Any]) -> None:
    allocator = PagedAllocator(4, 2, max_num_seqs=1, max_model_len=8)
    allocator.allocate("a", [1] * 4)
    held(allocator)
    held(allocator)
    before = allocator._places.tolist(), [buffers.places.tolist() for buffers in allocator._buffers]
    with pytest.raises(MemoryError):
        refused(allocator)
    assert (allocator._places.tolist(), [buffers.places.tolist() for buffers in allocator._buffers]) == before


def test_a_prompt_that_is_cached_and_longer_than_foreseen_fits_where_only_its_end_is_new() -> None:
    allocator = PagedAllocator(8, 1, max_num_seqs=1, max_model_len=2)
    allocator.allocate("a", [1, 2, 3, 4, 5, 6])
    allocator.commit("a")
    assert allocator.allocate("b", [1, 2, 3, 4, 5, 6, 7, 8]) == 6
    assert allocator.block_table("b")[:6] == allocator.block_table("a")


def test_no_sequence_gets_longer_than_its_length_can_tell() -> None:
    """Without a prefix cache no token is read, so that lengths past int32 are within reach of a test."""
    allocator = PagedAllocator(4, 2**30, prefix_caching=False)
    allocator.allocate("a", [1])
    tokens = np.zeros(2**28, np.int32)
    for _ in range(3):
        allocator.append("a", tokens)
    assert not allocator.can_allocate(2**31)
    with pytest.raises(MemoryError):
        allocator.reserve("a", 2**30)
    assert allocator.block_table("a") == [0]


def test_a_windowed_allocator_is_copied_with_its_window() -> None:
    first = WindowedAllocator(8, 2, window=3)
    first.allocate("a", [1] * 5)
    second = copy.deepcopy(first)
    second.append("a", [1] * 2)
    assert second.block_table("a")[0] == second.null_block == 8
    assert first.block_table("a") == [0, 1, 2]


class EqualsAll:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_an_id_that_equals_everything_is_no_remembered_row() -> None:
    allocator = PagedAllocator(8, 2)
    with pytest.raises(KeyError):
        allocator.append_step([EqualsAll()], [1])
    assert allocator.num_free_blocks() == 8


def test_a_comparison_that_fails_leaves_no_row_half_remembered() -> None:
    allocator = PagedAllocator(8, 2)
    for seq in "abd":
        allocator.allocate(seq, [1])
    allocator.append_step(["a", "b", "d"], [1, 1, 1])
    allocator.free("a")
    with pytest.raises(ValueError, match="ambiguous"):
        allocator.append_step(["c", np.zeros(2), "d"], [1, 1, 1])  # NumPy has no one answer
    with pytest.raises(KeyError, match="c"):
        allocator.append_step(["c", "b", "d"], [1, 1, 1])
    assert allocator.append_step(["b", "d"], [1, 1]).context_lens.tolist() == [3, 3]


def test_a_batch_with_more_rows_than_there_are_sequences_names_the_unknown() -> None:
    allocator = PagedAllocator(8, 2, max_num_seqs=1)
    allocator.allocate("a", [1])
    with pytest.raises(KeyError, match=r"\['x', 'y'\] unknown"):
        allocator.append_step(["a", "x", "y"], [1, 2, 3])


def test_checks_for_rows_that_come_twice_go_on_when_their_number_is_spent() -> None:
    allocator = PagedAllocator(16, 2)
    for seq in range(4):
        allocator.allocate(seq, [1])
    allocator._state.pool["marks"] = [LARGEST - 2]
    for step in range(6):
        rows = [0, 1, 2, 3][step % 2 :]
        assert allocator.append_step(rows, [1] * len(rows)).num_seqs == len(rows)
        with pytest.raises(KeyError, match="more than once"):
            allocator.append_step([3, 3], [1, 1])
    assert 0 < allocator._state.pool["marks"][0] < 20


def test_arrays_that_another_version_has_pickled_are_refused() -> None:
    allocator = PagedAllocator(4, 2)
    attributes = allocator.__getstate__()
    wider = np.zeros(4, [*BLOCK.descr, ("new", np.int32)])
    with pytest.raises(TypeError, match="another version"):
        PagedAllocator.__new__(PagedAllocator).__setstate__(
            attributes | {"_state": allocator._state._replace(blocks=wider)}
        )
