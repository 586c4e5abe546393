"""One decode step to time: what is counted, what is laid out, and which outputs are believed."""

from types import SimpleNamespace

import pytest
import torch

from kvproof_impls.torch_gather import TorchKernel
from kvproof_suites.bench.decode_step import Shape, draw, paged_step, require_dense_result, slots
from kvproof_suites.bench.tables import PAGED_STATES, lay_out_batch
from kvproof_suites.bench.test_decode import rates
from kvproof_suites.bench.timing import Timing
from kvproof_suites.bench.untimed import compiled_resources, why_not_timed
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CHURNED = SimpleNamespace(block_size=16, num_blocks=8, block_tables=[[5, 1], [2, 7, 1]])
SHAPE = Shape(2, 33, 4, 2, 16, "float32")
UNDER_TEST = KernelUnderTest("torch", TorchKernel(), "cpu")


@pytest.fixture(autouse=True)
def few_turns(monkeypatch):
    monkeypatch.setattr("kvproof_suites.bench.decode_step.ROTATED_BYTES", 2 * SHAPE.kv_bytes)


def test_bytes_are_live_keys_and_values_once_tables_query_and_output():
    shape = Shape(8, 1024, 32, 8, 128, "bfloat16")
    assert shape.kv_bytes == 2 * 8 * 1024 * 8 * 128 * 2
    assert shape.moved_bytes(None) - shape.kv_bytes == 2 * 8 * 32 * 128 * 2
    assert shape.moved_bytes(16) - shape.moved_bytes(None) == 8 * 64 * 4


def test_rates_are_decimal_and_held_against_the_roof(monkeypatch):
    roof = SimpleNamespace(read_gb_per_second=10.0)
    monkeypatch.setattr("kvproof_suites.bench.test_decode.roof", lambda device: roof)
    got = rates(SHAPE, 16, Timing((0.5,) * 3), "cpu")
    gb_per_second = SHAPE.moved_bytes(16) / 0.5 / 1e9
    assert got == pytest.approx(
        {
            "tokens_per_second": 4.0,
            "gb_per_second": gb_per_second,
            "roof_gb_per_second": 10.0,
            "share_of_roof": gb_per_second / 10,
        }
    )


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("state", PAGED_STATES)
def test_every_state_of_the_table_holds_the_same_contents(state, block_size):
    step = paged_step(UNDER_TEST, SHAPE, block_size, state, CHURNED, seed=3)
    assert len(step.turns) == 2
    require_dense_result(UNDER_TEST, SHAPE, block_size, 3, [step.run(turn) for turn in step.turns])


def test_the_dense_form_of_the_torch_kernel_is_attention_too():
    spec, turns = SHAPE.spec(16), draw(SHAPE, "cpu", 3).turns(SHAPE.batch)
    require_dense_result(UNDER_TEST, SHAPE, 16, 3, [TorchKernel().dense(spec, *turn) for turn in turns])


@pytest.mark.parametrize("wrong", [lambda out: out + 1e-3, lambda out: out.flip(0), lambda out: out * torch.nan])
def test_an_output_that_is_not_attention_is_not_believed(wrong):
    step = paged_step(UNDER_TEST, SHAPE, 16, "shuffled", CHURNED, seed=3)
    with pytest.raises(LawBroken, match=r"not timed: .* times its error bound away"):
        require_dense_result(UNDER_TEST, SHAPE, 16, 3, [wrong(step.run(turn)) for turn in step.turns])


def test_slots_follow_the_table():
    pages = lay_out_batch("churned", 2, 5, 4, SimpleNamespace(block_size=4, num_blocks=4, block_tables=[[3, 0, 2, 1]]))
    assert slots(pages).tolist() == [[12, 13, 14, 15, 0], [8, 9, 10, 11, 4]]


def test_an_interpreted_kernel_is_never_timed_and_shows_what_the_compiler_says():
    figures = {"target": "sm_90", "registers": 80, "spill_bytes": 0, "shared_bytes": 12800, "num_warps": 4}
    kernel = SimpleNamespace(interpreted=True, resources=lambda spec, targets: [figures | {"head_dim": 128}])
    under_test = KernelUnderTest("mine", kernel, "cpu")
    assert "interpreter" in why_not_timed(under_test, SHAPE, 16, "identity")
    assert compiled_resources(under_test, SHAPE.spec(16)) == [figures]


@pytest.mark.parametrize(
    ("kernel", "table", "reason"),
    [
        (SimpleNamespace(unsupported=lambda spec: "only 64"), "identity", "unsupported: only 64"),
        (SimpleNamespace(unsupported=lambda spec: None, max_context_len=32), "identity", "longer than 32"),
        (SimpleNamespace(unsupported=lambda spec: None), "dense", "has no dense"),
    ],
)
def test_what_can_not_be_timed_says_why(kernel, table, reason):
    assert reason in why_not_timed(KernelUnderTest("mine", kernel, "cpu"), SHAPE, 16, table)


@pytest.mark.parametrize("table", ["dense", *PAGED_STATES])
def test_what_can_be_timed_has_no_reason_against_it(table):
    assert why_not_timed(UNDER_TEST, SHAPE, 16, table) is None
    assert compiled_resources(UNDER_TEST, SHAPE.spec(16)) is None
