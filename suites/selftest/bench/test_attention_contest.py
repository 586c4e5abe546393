"""Attention in a contest: what is counted and laid out, which outputs are believed, what is said of the rest."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls.torch_gather import TorchKernel
from kvproof_suites.bench import attention_contest, eviction, paged_launches
from kvproof_suites.bench.attention_contest import AttentionContest, rates
from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.clocks import HostClock
from kvproof_suites.bench.contests import NotTimed, Ready
from kvproof_suites.bench.heads import Heads
from kvproof_suites.bench.paged_launches import num_turns, problem_of
from kvproof_suites.bench.points import parse_point
from kvproof_suites.bench.problem import Problem
from kvproof_suites.bench.race import race
from kvproof_suites.bench.tables import STATES
from kvproof_suites.bench.timing import Timing
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CHURNED = SimpleNamespace(block_size=16, num_blocks=8, block_tables=[[5, 1], [2, 7, 1]])
HEADS = Heads(4, 2, 16)
CELL = Cell("decode", parse_point("2q1s67"), HEADS, 16)


KV_BYTES = Problem(CELL.point, HEADS).kv_bytes


@pytest.fixture(autouse=True)
def few_turns(monkeypatch):
    cache_of(2 * KV_BYTES, monkeypatch)


def cache_of(size, monkeypatch):
    for module in (paged_launches, attention_contest, eviction):
        monkeypatch.setattr(module, "rotated_bytes", lambda device: size)
    eviction.filler.cache_clear()


def contest(kernel, clock=None):
    return AttentionContest({"mine": KernelUnderTest("mine", kernel, "cpu")}, "cpu", CHURNED, 3, clock or HostClock())


def prepared(kernel, cell, clock=None):
    ((_, found),) = contest(kernel, clock).prepare([("mine", cell)])
    return found


def timed(kernel, cell=CELL):
    ready = prepared(kernel, cell)
    if isinstance(ready, Exception):
        return ready
    (found,) = race({"": ready.contestant}, HostClock(), seconds=0).values()
    return found


class Changed(TorchKernel):
    """The torch kernel with ``change`` around its launches."""

    def __init__(self, change):
        self.change = change

    def plan(self, spec, batch, reuse=None):
        launch = super().plan(spec, batch, reuse)
        return lambda query, pools: self.change(launch, query, pools)


def test_bytes_are_live_keys_and_values_once_tables_query_and_output():
    problem = Problem(parse_point("8q1s1k"), Heads(32, 8, 128, "bfloat16"))
    assert problem.kv_bytes == 2 * 8 * 1024 * 8 * 128 * 2
    assert problem.moved_bytes(None) - problem.kv_bytes == 2 * 8 * 32 * 128 * 2
    assert problem.moved_bytes(16) - problem.moved_bytes(None) == 8 * 64 * 4
    assert replace(problem, shared_tokens=512).kv_bytes == 2 * (1024 + 7 * 512) * 8 * 128 * 2


def test_a_latent_is_counted_once_and_8_bit_pools_by_their_bytes():
    latent = Heads(128, 1, 576, "bfloat16", value_dim=512, mla=True)
    assert Problem(parse_point("q1s1k"), latent).kv_bytes == 1024 * 576 * 2
    assert Problem(parse_point("q1s1k"), Heads(32, 8, 128, "bfloat16", "float8_e4m3fn")).kv_bytes == 2 * 1024 * 8 * 128


@pytest.mark.parametrize(("point", "pairs"), [("q1s1k", 1024), ("q4", 1 + 2 + 3 + 4), ("2q2s4", 2 * (3 + 4))])
def test_arithmetic_is_that_of_the_keys_a_causal_query_sees(point, pairs):
    assert Problem(parse_point(point), Heads(32, 8, 128)).num_flops == 2 * pairs * 32 * (128 + 128)


def test_rates_are_decimal_and_held_against_the_roof(monkeypatch):
    monkeypatch.setattr(attention_contest, "roof", lambda device: SimpleNamespace(read_gb_per_second=10.0))
    got = rates(CELL, 0.5, "cpu")
    gb_per_second = problem_of(CELL).moved_bytes(16) / 0.5 / 1e9
    assert (got["tokens_per_second"], got["gb_per_second"]) == pytest.approx((4.0, gb_per_second))
    assert (got["roof_gb_per_second"], got["share_of_roof"]) == pytest.approx((10.0, gb_per_second / 10))


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("table", STATES)
def test_every_state_of_the_table_computes_attention(table, block_size):
    assert isinstance(timed(TorchKernel(), replace(CELL, table=table, block_size=block_size)), Timing)


@pytest.mark.parametrize("point", ["q20", "2q7s40", "q9_3q1s50"])
def test_prompts_chunks_and_mixtures_are_attention_too(point):
    point = parse_point(point)
    assert isinstance(timed(TorchKernel(), replace(CELL, group=point.kind, point=point)), Timing)


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_pools_of_8_bits_hold_codes(kv_dtype):
    cell = replace(CELL, heads=replace(HEADS, kv_dtype=kv_dtype))
    assert isinstance(timed(TorchKernel(), cell), Timing)


def test_latent_attention_reads_the_values_in_the_keys():
    cell = replace(CELL, heads=Heads(4, 1, 24, value_dim=16, mla=True), table="shared-prefix")
    assert isinstance(timed(TorchKernel(), cell), Timing)


@pytest.mark.parametrize(
    "wrong", [lambda out: out + 1e-3, lambda out: out.flip(0), lambda out: out * torch.nan, lambda out: out.flip(1)]
)
def test_an_output_that_is_not_attention_is_not_believed(wrong):
    found = timed(Changed(lambda launch, query, pools: wrong(launch(query, pools))))
    assert isinstance(found, LawBroken)
    assert "times its error bound away" in str(found)


def test_an_output_that_goes_wrong_in_the_timed_loop_is_seen():
    count = iter(range(100))

    def tires(launch, query, pools):
        out = launch(query, pools)
        return out if next(count) < 23 else out.roll(1, 0)

    found = timed(Changed(tires))
    assert isinstance(found, LawBroken)
    assert next(count) > 20, "the examination and the warm-up passed"


def keeps_by_address(launch, query, pools, kept={}):  # noqa: B006
    key = (query.data_ptr(), pools.key.data_ptr())
    if key not in kept:
        kept[key] = launch(query, pools)
    return kept[key].clone()


def test_a_kernel_that_keeps_results_by_address_is_caught_by_new_data():
    found = prepared(Changed(keeps_by_address), CELL)
    assert isinstance(found, LawBroken)
    assert "results seem to be kept" in str(found)


def test_a_kernel_that_keeps_results_by_content_is_caught_by_its_speed():
    kept = {}

    def keeps(launch, query, pools):
        key = query.numpy().tobytes()
        if key not in kept:
            kept[key] = launch(query, pools)
        return kept[key].clone()

    found = prepared(Changed(keeps), replace(CELL, point=parse_point("4q1s2k")))
    assert isinstance(found, LawBroken)
    assert "of the time of a new one" in str(found)


def test_a_launch_that_does_nothing_and_hands_out_what_is_there_is_seen():
    outputs = {}

    def lazy(launch, query, pools):
        if query.data_ptr() not in outputs:
            outputs[query.data_ptr()] = launch(query, pools)
        return outputs[query.data_ptr()]

    case = contest(Changed(lazy))
    case.examined.add(("mine", CELL.point, CELL.heads))
    ((_, ready),) = case.prepare([("mine", CELL)])
    (found,) = race({"": ready.contestant}, HostClock(), seconds=0).values()
    assert isinstance(found, LawBroken)


def test_an_honest_kernel_passes_the_examination_every_time():
    for seed in range(5):
        case = contest(TorchKernel())
        case.seed = seed
        ((_, ready),) = case.prepare([("mine", CELL)])
        assert isinstance(ready, Ready)


def test_what_can_not_be_timed_is_a_row_without_figures():
    kernel = SimpleNamespace(features=frozenset(), unsupported=lambda spec: "only 64", dense=None)
    assert prepared(kernel, CELL) == NotTimed("unsupported: only 64")


def test_too_little_memory_is_told_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("kvproof_suites.memory.free_bytes", lambda device: 100_000)
    found = prepared(TorchKernel(), replace(CELL, point=parse_point("8q1s1k")))
    assert isinstance(found, NotTimed)
    assert "are free: name fewer implementations" in found.reason


def test_as_many_launches_take_turns_as_overfill_the_cache(monkeypatch):
    cache_of(5 * KV_BYTES + 1, monkeypatch)
    assert num_turns(CELL, "cpu") == 6
    cold, hot = (prepared(TorchKernel(), replace(CELL, cache=cache)).contestant for cache in ("cold", "hot"))
    assert (len(cold.inputs), cold.prepare, cold.hot) == (6, eviction.as_given, False)
    assert (len(hot.inputs), hot.prepare, hot.hot) == (1, eviction.as_given, True)


def test_a_cache_that_no_few_batches_fill_is_emptied_before_each_cold_launch(monkeypatch):
    cache_of(1000 * KV_BYTES, monkeypatch)
    cold, hot = (prepared(TorchKernel(), replace(CELL, cache=cache)).contestant for cache in ("cold", "hot"))
    assert len(cold.inputs) == paged_launches.FEW_TURNS
    assert cold.prepare.filler.nbytes == 1000 * KV_BYTES
    assert hot.prepare is eviction.as_given


def test_the_tax_is_over_the_same_kernel_without_a_table_and_a_plan_is_told_apart():
    cells = [replace(CELL, table=table) for table in ("dense", "shuffled")]
    ready = dict(contest(TorchKernel()).prepare([("mine", cell) for cell in cells]))
    timings = {("mine", cells[0]): Timing((0.002,) * 6), ("mine", cells[1]): Timing((0.003,) * 6)}
    dense, shuffled = (ready["mine", cell].figures(timings) for cell in cells)
    assert (dense["tax"], shuffled["tax"]) == (None, pytest.approx(0.5))
    assert "plan_ms" not in dense
    assert shuffled["plan_ms"] > 0


def test_a_step_of_a_model_is_one_plan_and_a_launch_a_layer():
    case = contest(TorchKernel())
    case.num_layers = 32
    ((_, ready),) = case.prepare([("mine", CELL)])
    figures = ready.figures({("mine", CELL): Timing((0.003,) * 6)})
    assert figures["num_layers"] == 32
    assert figures["step_ms"] == pytest.approx(32 * 3 + figures["plan_ms"])
