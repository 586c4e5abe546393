"""What the launcher can choose compiles to machine code without a GPU, within the chip's limits, and no worse than the
committed table says. A part is compiled here; all of it by ``make aot``."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from click.testing import CliRunner

from kvproof_kernels import aot
from kvproof_kernels.aot_report import report
from kvproof_kernels.aot_table import Row, read_table, vanished
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.resources import (
    Resources,
    UnreadableFigure,
    compile_variant,
    complaint,
    read_amdgcn,
    read_ptxas,
)
from kvproof_kernels.tiles import Form
from kvproof_kernels.variants import attention_variant, is_supported

FOLDER = Path(__file__).parents[1]
TABLE = read_table(FOLDER / "aot.csv")
HALF = Form(128, 128, torch.float16, torch.float16)
VARIANT = attention_variant("few", HALF, "sm_90")
ROW = Resources(VARIANT.kernel, VARIANT.case, "sm_90", "M=16 N=64", 4, 2, 128, 0, 1024, 0, 16, 32, 0)

MAIN = r"attention, (decode|prompt) rows, head dim 128, float16"
SOME = (
    rf"{MAIN}|attention, (decode|prompt) rows, head dim (64|256), float16|"
    r"attention, (decode|prompt) rows, head dim 576, bfloat16, values in keys|"
    r"attention, decode rows, head dim 128, (float32|bfloat16, float8_e4m3fn cache|float16, int8 cache, scales a token|"
    r"float16, soft cap or ALiBi)|combine, value dim 128, float16|block_copy, row dim 128, i16|"
    r"cache_write, row dim 128, bfloat16 to (float8_e4m3fn|int8), scales a (tensor|token)"
)
"""Two dozen variants, half a minute: the main ones on all chips, others of each sort on one."""


@pytest.mark.parametrize(
    ("variant", "target"),
    [
        pytest.param(variant, target, id=f"{variant.kernel}, {variant.case}, {target}")
        for target in CHIPS
        for variant in aot.variants_of(target)
        if re.fullmatch(SOME if target == "sm_90" else MAIN, f"{variant.kernel}, {variant.case}")
    ],
)
def test_a_variant_is_within_the_chips_limits_and_no_worse_than_the_table(variant, target):
    row = Row(triton.__version__, compile_variant(variant, target))
    assert list(aot.complaints(variant, row, TABLE)) == []


def test_the_table_knows_no_variant_that_a_launch_cannot_choose():
    keys = [aot.key_of(variant, target) for target in CHIPS for variant in aot.variants_of(target)]
    assert len(set(keys)) == len(keys)
    for version in {row.triton for row in TABLE}:
        assert vanished([(version, *key[1:]) for key in keys], TABLE, version) == []


def test_the_main_variants_are_in_the_table():
    keys = [aot.key_of(variant, target) for target in CHIPS for variant in aot.variants_of(target)]
    main = {key for key in keys if re.fullmatch(MAIN, f"{key[1]}, {key[2]}")}
    assert len(main) == 2 * len(CHIPS)
    known = {row.key for row in TABLE}
    assert triton.__version__ not in {key[0] for key in known} or main <= known


def test_a_chip_that_cannot_convert_e4m3_is_not_asked_to():
    codes = replace(HALF, kv_dtype=torch.float8_e4m3fn)
    assert [target for target in CHIPS if not is_supported(codes, target)] == ["sm_80"]
    assert not any("attention" in variant.kernel and "e4m3" in variant.case for variant in aot.variants_of("sm_80"))


def test_the_page_for_people_shows_the_table():
    assert (FOLDER / "AOT.md").read_text(encoding="utf-8") == report(
        TABLE, sum(len(aot.variants_of(target)) for target in CHIPS), read_table(FOLDER / "aot-peers.csv")
    )


def test_nothing_in_the_table_spills_or_exceeds_a_limit():
    known = {aot.key_of(variant, target)[1:]: variant for target in CHIPS for variant in aot.variants_of(target)}
    wrong = {row.key: complaint(row.resources, known[row.key[1:]]) for row in TABLE}
    assert not {key: text for key, text in wrong.items() if text}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"spill_bytes": 56}, "spills 56 bytes a thread"),
        ({"shared_bytes": 232_449}, "takes 232,449 bytes of shared memory, sm_90 has 232,448"),
        ({"local_memory": 3}, "accesses a thread's own memory, which is the chip's main memory, 3 times"),
        ({"row_bytes": 8}, "loads 8 bytes of a row of K or V at once instead of 16"),
        ({"row_bytes": 0}, "shows no load of K or V"),
        ({"tensor_cores": 0}, "uses no tensor cores"),
        ({}, None),
        ({"row_bytes": None}, None),
    ],
)
def test_what_costs_speed_is_a_complaint(changed, wrong):
    assert complaint(replace(ROW, **changed), VARIANT) == wrong


def test_float32_needs_no_tensor_cores():
    variant = attention_variant("few", replace(HALF, dtype=torch.float32), "sm_90")
    assert complaint(replace(ROW, tensor_cores=0), variant) is None


def test_a_tile_that_is_too_large_is_seen_to_spill():
    constants = {**VARIANT.constants, "BLOCK_M": 32, "BLOCK_N": 32}
    row = compile_variant(replace(VARIANT, constants=constants, options={"num_warps": 1}), "sm_80")
    assert row.spill_bytes > 0
    assert row.local_memory > 0


def test_rows_that_are_not_known_to_be_aligned_are_seen_to_be_loaded_in_pieces():
    row = compile_variant(replace(VARIANT, divisible=VARIANT.divisible - {"stride_key_head"}), "sm_90")
    assert complaint(row, VARIANT) == "loads 2 bytes of a row of K or V at once instead of 16"


def test_ptxas_reports_are_read():
    page = """ptxas info    : Function properties for decode_kernel
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size"""
    assert read_ptxas(page) == (168, 20)


def test_amd_metadata_is_read():
    assembly = ".sgpr_spill_count: 2\n .vgpr_count:     96\n .vgpr_spill_count: 3\n .private_segment_fixed_size: 0\n"
    assert read_amdgcn(assembly) == (96, 12)
    assert read_amdgcn(assembly.replace("size: 0", "size: 40")) == (96, 40)


@pytest.mark.parametrize("page", ["", "ptxas fatal : Unsupported .version 9.4", "Used 1 registers, Used 2 registers"])
def test_a_figure_that_cannot_be_read_is_an_error(page):
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_ptxas(page)
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_amdgcn(page)


def test_an_unknown_chip_is_refused_with_those_known():
    with pytest.raises(ValueError, match="unknown target 'sm_12'; known: sm_80"):
        compile_variant(VARIANT, "sm_12")


def made(place):
    """As if compiled: what has a head dim of 256 spills."""
    target, number = place
    variant = aot.variants_of(target)[number]
    resources = replace(ROW, kernel=variant.kernel, case=variant.case, target=target)
    return Row(triton.__version__, replace(resources, spill_bytes=8 * ("dim 256" in variant.case)))


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run the command in this process, with ``made`` as the compiler; gives its result and the table's rows."""
    monkeypatch.setattr(aot, "compiled", made)
    monkeypatch.setattr(aot, "ProcessPoolExecutor", lambda jobs: ThreadPoolExecutor(1))
    files = ["--table", str(tmp_path / "aot.csv"), "--report", str(tmp_path / "AOT.md")]

    def run(*options):
        result = CliRunner().invoke(aot.main, [*files, *options])
        rows = read_table(tmp_path / "aot.csv")
        assert (tmp_path / "AOT.md").read_text() == report(rows, sum(len(aot.variants_of(target)) for target in CHIPS))
        return result, rows

    return run


def test_the_command_keeps_the_table_and_exits_with_1_on_a_complaint(command):
    result, rows = command("--target", "sm_90")
    spilt = [row for row in rows if row.resources.spill_bytes]
    assert {row.key for row in rows} == {aot.key_of(variant, "sm_90") for variant in aot.variants_of("sm_90")}
    assert spilt
    assert f"{len(rows)} variants, {len(spilt)} complaints" in result.output
    assert result.exit_code == 1


def test_a_part_is_compiled_anew_and_the_rest_of_the_table_stays(command, monkeypatch):
    _, before = command("--target", "sm_90")
    monkeypatch.setattr(
        aot, "compiled", lambda place: replace(made(place), resources=replace(made(place).resources, registers=1))
    )
    result, after = command("--target", "sm_90", "--only", "combine, value dim 64, float16")
    changed = set(after) - set(before)
    assert [(row.resources.case, row.resources.registers) for row in changed] == [("value dim 64, float16", 1)]
    assert len(after) == len(before)
    assert result.exit_code == 0


def test_a_variant_that_does_not_compile_is_a_complaint():
    aot.variants_of("sm_90").append(replace(VARIANT, case="broken", types={}))
    try:
        found = aot.compiled(("sm_90", len(aot.variants_of("sm_90")) - 1))
    finally:
        aot.variants_of("sm_90").pop()
    assert str(found).startswith("attention, decode rows (broken) on sm_90: ")
