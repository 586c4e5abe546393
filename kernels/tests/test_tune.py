"""``make tune`` adopts a tile for a reason: it compiles as wanted, gives attention, and is faster than the noise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from kvproof_kernels import aot, contest, tune, tuned
from kvproof_kernels.candidates import candidates, compiled, tile_of, tuned_variants, with_tile
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.contest import WrongDefault
from kvproof_kernels.resources import compile_variant, complaint
from kvproof_kernels.tiles import Form, rows_kind, tile_for
from kvproof_kernels.trial import Workload
from kvproof_kernels.tuned import Key, Place, Tile, Tuned, read_table

FORM = Form(64, 64, torch.float16, torch.float16)
DEFAULT = tile_for("few", FORM, "cuda")
SLOW, FAST, WRONG = (replace(DEFAULT, num_stages=stages) for stages in (3, 4, 5))


class Trial:
    """Known times of known configurations; one of them gives something else than attention."""

    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def fault(self, configuration):
        return "needles are missed" if configuration == WRONG else None

    def planned(self, configuration):
        return [lambda: self.milliseconds[configuration]] * 2


class Clock:
    """What a call says, times a jitter that comes again."""

    def __init__(self, jitter):
        self.jitter = itertools.cycle(jitter)

    def seconds(self, call):
        return call() * next(self.jitter) / 1e3


CALM = [1.0, 1.001, 0.999, 1.0005, 0.9995]
NOISY = [1.0, 1.3, 0.7, 1.2, 0.9, 0.8, 1.1]


def held(*workloads, jitter=CALM, listed=(DEFAULT, SLOW, FAST)):
    trials = [Trial({DEFAULT: 1.0, SLOW: 1.2, WRONG: 0.1, FAST: fast}) for fast in workloads]
    return contest.contest(listed, trials, Clock(jitter), rounds=40)


def test_a_tile_that_is_faster_is_adopted():
    verdict = held(0.8)
    assert verdict.best.tile == tile_of(FAST)
    assert verdict.best.speedups[0].low == pytest.approx(1.25, rel=0.01)
    assert verdict.default_ms[0] == pytest.approx(1.0, rel=0.01)


def test_a_gain_within_the_noise_is_none():
    assert held(0.97, jitter=NOISY).best is None
    assert held(0.97).best is not None


def test_a_gain_that_is_sure_and_tiny_is_not_worth_a_line():
    assert held(0.995, jitter=[1.0]).best is None


def test_faster_in_one_workload_and_slower_in_another_is_no_gain():
    assert held(0.8, 1.1).best is None
    assert held(0.8, 1.0).best.tile == tile_of(FAST)


def test_the_fastest_tile_is_passed_over_where_it_is_wrong():
    verdict = held(0.8, listed=(DEFAULT, WRONG, FAST))
    assert verdict.best.tile == tile_of(FAST)
    assert verdict.faults == {tile_of(WRONG): "needles are missed"}


def test_nothing_is_compared_with_a_wrong_default():
    with pytest.raises(WrongDefault, match="needles are missed"):
        held(0.8, listed=(WRONG, FAST))


def test_everybody_is_first_equally_often():
    order = []

    class Recorder:
        def seconds(self, call):
            order.append(call())
            return 1.0

    contest.race([DEFAULT, SLOW, FAST], Trial({DEFAULT: 0, SLOW: 1, FAST: 2}), Recorder(), rounds=3)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize("model", tune.MODELS)
def test_candidates_begin_with_what_a_launch_would_take(kind, model):
    form = tune.MODELS[model][2]
    listed = candidates(kind, form, "cuda")
    assert listed[0] == tile_for(kind, form, "cuda")
    assert len(set(listed)) == len(listed) >= 8
    for candidate in listed:
        tuned.check_tile(tile_of(candidate))


def test_a_candidate_that_spills_is_out_of_the_question():
    form = Form(256, 256, torch.float16, torch.float16)
    fat = with_tile(tile_for("many", form, "cuda"), Tile(128, 64, 4, 2))
    resources, wrong = compiled("many", form, fat, "sm_90")
    assert resources.spill_bytes > 0
    assert wrong is not None


def test_every_cell_has_workloads_of_its_rows():
    listed = list(tune.cells(list(tune.MODELS), [16, 64]))
    assert len({cell.key("sm_90") for cell in listed}) == len(listed)
    for cell in listed:
        assert cell.workloads
        assert {rows_kind(w.query_len * cell.geometry.group_size) for w in cell.workloads} == {cell.rows}
    latent = [cell for cell in listed if cell.geometry.mla]
    assert {cell.rows for cell in latent} == {"many"}  # a decode row has 128 heads there


def test_the_turns_outgrow_the_cache():
    (cell, *_) = tune.cells(["llama-3-8b"], [16])
    token_bytes = 2 * 8 * 128 * 2
    assert tune.num_turns(cell.geometry, Workload(1, 1, 1000), cache_bytes=50_000_000) * 1000 * token_bytes >= 10**8
    assert tune.num_turns(cell.geometry, Workload(64, 1, 4096), cache_bytes=50_000_000) == 2


class SaidClock:
    """Interpreted launches take no time that means anything: one tile is said to be twice as fast."""

    def __init__(self, fast):
        self.fast = fast

    def seconds(self, call):
        call()
        (plan,) = call.__defaults__
        return 0.5 if tile_of(plan.configuration) == self.fast else 1.0


@pytest.fixture
def small(monkeypatch):
    """One cell, three tiles and tiny workloads, on the CPU: all is real but the chip and its clock."""
    fast = Tile(16, 64, 4, 2)
    default = tile_for("few", FORM, "interpreter")
    listed = [default, with_tile(default, fast), with_tile(default, Tile(16, 128, 4, 1))]
    monkeypatch.setattr(tune, "candidates", lambda *given: listed)
    monkeypatch.setitem(tune.MODELS, "small", (4, 2, FORM))
    monkeypatch.setattr(tune, "WORKLOADS", (Workload(2, 1, 77),))
    monkeypatch.setattr(contest, "FIRST_ROUNDS", 1)
    tune.admitted.cache_clear()
    yield fast
    tune.admitted.cache_clear()


def test_a_cell_is_tuned_from_compiler_to_line(small, monkeypatch):
    (cell,) = tune.cells(["small"], [16])
    line, text = tune.tune(cell, torch.device("cpu"), "sm_90", SaidClock(small), 20, seed=0, cache_bytes=1)
    assert line == Tuned(Key.of(Place("sm_90", 2, 16), "few", FORM), small, 2.0)
    assert "small, block size 16, few rows" in text
    assert f"adopted: {small}" in text


@pytest.fixture
def device(monkeypatch):
    """An H200 on paper."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    properties = type("Properties", (), {"L2_cache_size": 50 * 2**20})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(tune, "DeviceClock", lambda device: None)


def test_the_command_writes_lines_and_takes_stale_ones_out(device, monkeypatch, tmp_path):
    first, second, other = (cell.key("sm_90") for cell in tune.cells(["gpt-oss"], [16, 32, 64])[:3])
    table, tile = tmp_path / "tuned.toml", Tile(16, 128, 8, 3)
    tuned.write_table(table, [Tuned(key, Tile(16, 32, 4, 2), 1.1) for key in (second, other)])
    found = {first: Tuned(first, tile, 2.0)}
    monkeypatch.setattr(tune, "tune", lambda cell, *given: (found.get(cell.key("sm_90")), "told"))
    options = ["--model=gpt-oss", "--block-size=16", "--block-size=32", f"--table={table}"]
    done = CliRunner().invoke(tune.main, options, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert read_table(table) == {first: found[first], other: Tuned(other, Tile(16, 32, 4, 2), 1.1)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_the_command_says_so_and_touches_nothing(tmp_path):
    table = tmp_path / "tuned.toml"
    tuned.write_table(table, [])
    before = table.read_bytes()
    done = CliRunner().invoke(tune.main, [f"--table={table}"])
    assert done.exit_code == 1
    assert "torch finds no CUDA device on this machine, so nothing was measured" in done.output
    assert table.read_bytes() == before


def test_an_unknown_chip_is_refused_by_name(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    done = CliRunner().invoke(tune.main, [])
    assert done.exit_code == 1
    assert "no limits are known for sm_120; known: sm_80" in done.output


def test_a_dry_run_lists_the_work_without_a_device():
    done = CliRunner().invoke(tune.main, ["--dry-run", "--model=gpt-oss", "--block-size=16"])
    assert done.exit_code == 0
    assert done.output.count("gpt-oss, block size 16") == 2


def test_lines_of_the_committed_table_pass_the_gate():
    """A dozen of them, as far apart as they are; all of them by ``make aot``."""
    listed = [(variant, target) for target in CHIPS for variant in tuned_variants(target)]
    for variant, target in listed[:: -(-len(listed) // 12) or 1]:
        assert complaint(compile_variant(variant, target), variant) is None


@pytest.fixture
def two_lines(monkeypatch):
    """A table of one tile, measured for two block sizes."""
    key = Key.of(Place("sm_90", 4, 16), "few", FORM)
    lines = [Tuned(replace(key, block_size=size), Tile(16, 128, 4, 2), 1.1) for size in (16, 64)]
    monkeypatch.setattr("kvproof_kernels.candidates.table", lambda: {line.key: line for line in lines})
    aot.variants_of.cache_clear()
    yield
    aot.variants_of.cache_clear()


def test_the_gate_compiles_what_the_table_adds(two_lines):
    (variant,) = tuned_variants("sm_90")
    assert variant in aot.variants_of("sm_90")
    assert list(tuned_variants("sm_80")) == []
    row = compile_variant(variant, "sm_90")
    assert complaint(row, variant) is None
    assert row.tile.startswith("M=16 N=128")


def test_the_gate_tells_a_tuned_variant_from_the_one_of_tiles(two_lines):
    keys = [aot.key_of(variant, "sm_90") for variant in aot.variants_of("sm_90")]
    assert len(set(keys)) == len(keys)
