"""Writes and copies in a contest: the bytes that are counted, and that a time is believed only when they were moved."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvproof_impls.torch_gather import TorchKernel
from kvproof_suites.bench import eviction
from kvproof_suites.bench.block_moves import BlockMoves, moved_bytes
from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.clocks import HostClock
from kvproof_suites.bench.contests import NotTimed
from kvproof_suites.bench.eviction import Evictor
from kvproof_suites.bench.heads import Heads
from kvproof_suites.bench.points import parse_point
from kvproof_suites.bench.race import race
from kvproof_suites.bench.tables import PAGED_STATES
from kvproof_suites.bench.timing import Timing
from kvproof_suites.bench.unchecked import unchecked
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CHURNED = SimpleNamespace(block_size=16, num_blocks=8, block_tables=[[5, 1], [2, 7, 1]])
WRITE = Cell("write", parse_point("q9_3q1s40"), Heads(4, 2, 16), 8)
COPY = replace(WRITE, group="copy", point=parse_point("5q1"))


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    monkeypatch.setattr(eviction, "rotated_bytes", lambda device: 4096)
    eviction.filler.cache_clear()


def timed(kernel, cell):
    moves = BlockMoves({"mine": KernelUnderTest("mine", kernel, "cpu")}, "cpu", CHURNED, 3)
    ((_, ready),) = moves.prepare([("mine", cell)])
    if isinstance(ready, NotTimed):
        return ready
    (found,) = race({"": ready.contestant}, HostClock(), seconds=0).values()
    return found


@pytest.mark.parametrize("table", PAGED_STATES)
@pytest.mark.parametrize("cell", [WRITE, COPY], ids=["write", "copy"])
def test_every_state_of_the_table_is_written_and_copied_through(cell, table):
    assert isinstance(timed(TorchKernel(), replace(cell, table=table)), Timing)


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "float16"])
@pytest.mark.parametrize("cell", [WRITE, COPY], ids=["write", "copy"])
def test_pools_of_another_type_hold_what_rounds_to_it(cell, kv_dtype):
    assert isinstance(timed(TorchKernel(), replace(cell, heads=replace(cell.heads, kv_dtype=kv_dtype))), Timing)


@pytest.mark.parametrize("cell", [WRITE, COPY], ids=["write", "copy"])
def test_latent_pools_are_moved_once(cell):
    assert isinstance(timed(TorchKernel(), replace(cell, heads=Heads(4, 1, 24, value_dim=16, mla=True))), Timing)


class Lazy(TorchKernel):
    """Writes and copies nothing after its first calls."""

    def __init__(self, calls):
        self.left = calls

    def write(self, *given):
        self.left -= 1
        return super().write(*given) if self.left >= 0 else None

    def copy_blocks(self, *given):
        self.left -= 1
        return super().copy_blocks(*given) if self.left >= 0 else None


@pytest.mark.parametrize("cell", [WRITE, COPY], ids=["write", "copy"])
@pytest.mark.parametrize("calls", [0, 3])
def test_what_was_not_moved_in_the_timed_loop_is_seen(cell, calls):
    assert isinstance(timed(Lazy(calls), cell), LawBroken)


def test_bytes_are_read_and_written():
    write = Cell("write", parse_point("32q1s1k"), Heads(32, 8, 128, "bfloat16"), 16)
    assert moved_bytes(write) == 32 * (2 * 2 * 8 * 128 * 2 + 8)
    in_8_bits = replace(write, heads=replace(write.heads, kv_dtype="int8"))
    assert moved_bytes(in_8_bits) == 32 * (2 * 8 * 128 * (2 + 1) + 8)
    assert moved_bytes(replace(write, group="copy")) == 2 * 32 * 16 * 2 * 8 * 128 * 2


def test_a_kernel_without_the_call_says_so():
    kernel = SimpleNamespace(features=frozenset(), unsupported=lambda spec: None)
    assert timed(kernel, WRITE) == NotTimed("has no write")
    assert timed(kernel, COPY) == NotTimed("has no copy_blocks")
    assert "no table" in timed(TorchKernel(), replace(WRITE, table="dense")).reason


def test_the_evictor_reads_more_than_a_cache_holds():
    assert Evictor("cpu").filler.nbytes == 4096
    assert Evictor("cpu")("given") == "given"


def test_checks_of_a_kernel_are_off_while_it_is_timed_and_then_as_before():
    checking, other = SimpleNamespace(validate=True), SimpleNamespace()
    with unchecked([checking, other]):
        assert (checking.validate, hasattr(other, "validate")) == (False, False)
    assert checking.validate
