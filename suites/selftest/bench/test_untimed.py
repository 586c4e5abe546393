"""What can't be timed says why, and carries what the compiler says instead."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.heads import Heads
from kvproof_suites.bench.points import parse_point
from kvproof_suites.bench.untimed import told_instead, why_not_timed
from kvproof_suites.under_test import KernelUnderTest

HEADS = Heads(4, 2, 16)
CELL = Cell("decode", parse_point("2q1s67"), HEADS, 16)
PLAIN = {"unsupported": lambda spec: None, "features": frozenset(), "dense": None}


def kernel(**attributes):
    return KernelUnderTest("mine", SimpleNamespace(**attributes), "cpu")


@dataclass
class Entry:
    target: str = "sm_90"
    registers: int = 80
    spill_bytes: int = 0
    shared_bytes: int = 12800
    num_warps: int = 4
    head_dim: int = 128


class EntryWithOccupancy(Entry):
    @property
    def occupancy(self):
        return SimpleNamespace(warps=24)


TOLD = {"target": "sm_90", "registers": 80, "spill_bytes": 0, "shared_bytes": 12800, "num_warps": 4}


@pytest.mark.parametrize(
    ("entry", "told"),
    [(TOLD | {"head_dim": 128}, TOLD), (Entry(), TOLD), (EntryWithOccupancy(), TOLD | {"resident_warps": 24})],
)
def test_an_interpreted_kernel_is_never_timed_and_shows_what_the_compiler_says(entry, told):
    interpreted = kernel(interpreted=True, resources=lambda spec, targets: [entry])
    assert "interpreter" in why_not_timed(interpreted, CELL)
    assert told_instead(interpreted, CELL) == {"resources": [told]}
    assert told_instead(interpreted, replace(CELL, group="write")) == {}, "that is another kernel"


def test_a_kernel_that_is_timed_elsewhere_is_not_compiled_for_it():
    assert told_instead(kernel(resources=lambda spec, targets: 1 / 0), CELL) == {}


@pytest.mark.parametrize(
    ("attributes", "changed", "reason"),
    [
        ({"unsupported": lambda spec: "only 64"}, {}, "unsupported: only 64"),
        ({"max_context_len": 32}, {}, "longer than 32 impractical, this one has 67"),
        ({}, {"mode": "graph"}, "does not declare graph"),
        ({}, {"heads": Heads(4, 1, 24, value_dim=16, mla=True)}, "does not declare mla"),
        ({}, {"heads": replace(HEADS, kv_dtype="float8_e5m2")}, "does not declare fp8"),
        ({}, {"heads": replace(HEADS, kv_dtype="int8")}, "does not declare int8"),
        ({}, {"table": "dense", "group": "prefill"}, "a decode step of equal contexts"),
        ({}, {"table": "dense", "point": parse_point("q1s67_q1s60")}, "a decode step of equal contexts"),
        ({}, {"group": "write"}, "has no write"),
        ({}, {"group": "copy"}, "has no copy_blocks"),
    ],
)
def test_what_can_not_be_timed_says_why(attributes, changed, reason):
    assert reason in why_not_timed(kernel(**PLAIN | attributes), replace(CELL, **changed))


def test_a_kernel_without_a_dense_form_has_no_dense_row():
    without = kernel(**{name: value for name, value in PLAIN.items() if name != "dense"})
    assert "has no dense" in why_not_timed(without, replace(CELL, table="dense"))
    assert why_not_timed(without, CELL) is None
