"""What ``recorded`` writes down, and that the allocator behind it does not feel it."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from kvproof_impls import BlockAllocator, recorded
from kvproof_impls.history import FIELDS, QUESTIONS
from kvproof_impls.paged_python import PagedAllocator, WindowedAllocator
from kvproof_impls.textbook import TextbookAllocator

OPERATIONS = FIELDS.keys() - set(QUESTIONS)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


def test_each_operation_is_a_line_with_its_result_and_the_free_blocks_after_it(path):
    allocator = recorded(PagedAllocator(8, 2), path)
    assert allocator.allocate("a", [1, 2, 3]) == 0
    allocator.fork("a", ("b", 1))
    copies = allocator.append(("b", 1), [4])
    batch = allocator.append_step(["a", ("b", 1)], np.array([5, 6], np.int32))
    allocator.free("a")
    head, *operations = lines(path)
    assert head == {"kvproof_history": 2, "num_blocks": 8, "block_size": 2, "allocator": "PagedAllocator"}
    assert operations == [
        {"op": "allocate", "seq": "a", "tokens": [1, 2, 3], "returned": 0, "free": 6},
        {"op": "fork", "parent": "a", "child": ["b", 1], "returned": [], "free": 6},
        {"op": "append", "seq": ["b", 1], "tokens": [4], "returned": [list(copies[0])], "free": 5},
        {
            "op": "append_step",
            "seqs": ["a", ["b", 1]],
            "tokens": [5, 6],
            "returned": {"slots": batch.slot_mapping.tolist(), "copies": []},
            "free": 4,
        },
        {"op": "free", "seq": "a", "returned": None, "free": 5},
    ]


def test_an_error_is_written_down_and_raised(path):
    allocator = recorded(PagedAllocator(2, 2), path)
    with pytest.raises(MemoryError, match="3 blocks needed"):
        allocator.allocate("a", [1] * 5)
    with pytest.raises(KeyError):
        allocator.free("ghost")
    assert [line.get("raised") for line in lines(path)] == [None, "MemoryError", "KeyError"]


@pytest.mark.parametrize(
    "make", [PagedAllocator, TextbookAllocator, lambda *sizes: WindowedAllocator(*sizes, window=4)]
)
def test_it_has_what_the_allocator_has_and_nothing_else(make, path):
    bare = make(4, 2)
    allocator = recorded(bare, path)
    assert isinstance(allocator, BlockAllocator)
    for name in (*OPERATIONS, "cached_prefix", "window", "null_block", "eviction", "reserves", "num_host_blocks"):
        assert callable(getattr(allocator, name, None)) == callable(getattr(bare, name, None)), name
        assert hasattr(allocator, name) == hasattr(bare, name), name
    assert (allocator.num_blocks, allocator.pool_blocks, allocator.block_size) == (4, bare.pool_blocks, 2)


def test_questions_are_answered_and_not_written_down(path):
    allocator = recorded(PagedAllocator(4, 2), path)
    assert allocator.can_allocate(8)
    assert allocator.num_free_blocks() == 4
    assert allocator.cached_prefix([1, 2, 3]) == 0
    allocator.allocate("a", [1])
    assert len(allocator.block_table("a")) == 1
    assert len(lines(path)) == 2


def test_arguments_by_name_and_ids_of_numpy_are_kept(path):
    allocator = recorded(PagedAllocator(4, 2), path)
    allocator.allocate(seq=np.int64(7), tokens=np.arange(3, dtype=np.int32), key=("salt", (1, 0.5, None)))
    assert lines(path)[1]["seq"] == 7
    assert lines(path)[1]["tokens"] == [0, 1, 2]
    assert lines(path)[1]["key"] == ["salt", [1, 0.5, None]]


@pytest.mark.parametrize("seq", [object(), b"a", Fraction(1, 2), frozenset("a"), ("a", b"b"), float("nan")])
def test_an_id_that_json_would_change_is_refused_before_anything_happens(seq, path):
    allocator = recorded(PagedAllocator(4, 2), path)
    with pytest.raises(
        TypeError, match=r"a history can't keep .* of type .*; give strings, integers, floats, or tuples"
    ):
        allocator.allocate(seq, [1])
    assert allocator.num_free_blocks() == 4
    assert len(lines(path)) == 1


def test_an_argument_without_a_field_is_refused_by_name(path):
    class Tagging(PagedAllocator):
        def free(self, seq, reason=None):
            super().free(seq)

    allocator = recorded(Tagging(4, 2), path)
    allocator.allocate("a", [1])
    with pytest.raises(TypeError, match="a history has no field for reason of free; it knows seq"):
        allocator.free("a", reason="abort")
    with pytest.raises(TypeError, match="a history has no field for reason of free"):
        allocator.free("a", "abort")


def test_an_allocator_in_use_is_refused(path):
    allocator = PagedAllocator(4, 2)
    allocator.allocate("a", [1])
    with pytest.raises(ValueError, match="1 of 4 blocks are in use; wrap an allocator before its first sequence comes"):
        recorded(allocator, path)


DIES = """
import os, sys
from kvproof_impls import recorded
from kvproof_impls.paged_python import PagedAllocator

class Dies(PagedAllocator):
    def append(self, seq, tokens):
        if tokens == [9]:
            os._exit(3)
        return super().append(seq, tokens)

allocator = recorded(Dies(4, 2), sys.argv[1])
assert "torch" not in sys.modules, "recording alone must not pay for torch"
allocator.allocate("a", [1])
for token in (2, 9):
    allocator.append("a", [token])
"""


def test_what_happened_before_a_process_died_stays_and_where_it_died(path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", DIES, str(path)], env=env, timeout=60, capture_output=True, check=False
    )
    assert ended.returncode == 3, ended.stderr
    whole, last = path.read_text(encoding="utf-8").splitlines()[:-1], path.read_text(encoding="utf-8").splitlines()[-1]
    assert [json.loads(line).get("op") for line in whole] == [None, "allocate", "append"]
    assert last == '{"op": "append", "seq": "a", "tokens": [9]'


def test_nothing_is_kept_in_memory(path):
    class Stub:
        num_blocks = block_size = pool_blocks = 4

        def num_free_blocks(self):
            return 4

        def append(self, seq, tokens):
            return ()

        def append_step(self, seqs, tokens):
            return None

    allocator = recorded(Stub(), path)
    tracemalloc.start()
    for token in range(3_000):
        allocator.append(token, [token] * 20)
        allocator.append_step([token, "b"], [token, 0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 500_000
    assert peak < 50_000


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_recorder_is_not_copied_since_its_methods_would_still_change_the_first(copied, path):
    allocator = recorded(PagedAllocator(8, 2), path)
    with pytest.raises(TypeError, match="copy __wrapped__ and give it a recorder of its own"):
        copied(allocator)
    assert copied(allocator.__wrapped__)
