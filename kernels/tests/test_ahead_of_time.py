"""Every configuration that the launcher can choose compiles to machine code for every chip, without a GPU: no register
spills, shared memory that the chip has, and every figure read."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from click.testing import CliRunner

from kvproof_kernels import aot, resources
from kvproof_kernels.launch import TILES, padded, tile_for
from kvproof_kernels.resources import Resources, UnreadableFigure, compile_resources, read_amdgcn, read_ptxas


@pytest.mark.parametrize(("kernel", "target", "head_dim", "dtype"), list(aot.configurations()))
def test_it_compiles_within_the_chips_resources(triton_cache, kernel, target, head_dim, dtype):
    row = compile_resources(kernel, target, head_dim=head_dim, dtype=dtype)
    assert row.registers > 0
    assert row.complaint is None


def test_the_gate_covers_all_that_the_launcher_can_choose():
    covered = {(kernel, target, head_dim, dtype) for kernel, target, head_dim, dtype in aot.configurations()}
    for kernel, itemsize, head_dim in TILES:
        dtypes = {"float32"} if itemsize == 4 else {"float16", "bfloat16"}
        assert {(kernel, target, head_dim, dtype) for target in resources.TARGETS for dtype in dtypes} <= covered
    assert {padded(dim) for dim in range(16, 257, 16)} == set(aot.PADDED_HEAD_DIMS)


def test_head_dims_padded_alike_share_a_compiled_form():
    assert tile_for("decode", 80, 2, "cuda") == tile_for("decode", 128, 2, "cuda")
    assert tile_for("decode", 192, 2, "hip") == tile_for("decode", 256, 2, "hip")


def test_a_spill_is_a_complaint():
    row = Resources("decode", "sm_90", 64, 1, 16, "float16", 255, 56, 1024, 4)
    assert row.complaint == "spills 56 bytes a thread"


def test_more_shared_memory_than_the_chip_has_is_a_complaint():
    row = Resources("decode", "gfx942", 64, 1, 16, "float16", 128, 0, 70_000, 4)
    assert row.complaint == "takes 70,000 bytes of shared memory, gfx942 has 65,536"
    assert dataclasses.replace(row, target="sm_80").complaint is None


def test_a_tile_that_is_too_large_is_seen_to_spill(triton_cache, monkeypatch):
    monkeypatch.setitem(TILES, ("decode", 2, 128), (32, 32, 1, 1))
    row = compile_resources("decode", "sm_80", head_dim=128)
    assert row.spill_bytes > 0


def test_ptxas_reports_are_read():
    report = """ptxas info    : Function properties for decode_kernel
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size"""
    assert read_ptxas(report) == (168, 20)


def test_amd_metadata_is_read():
    assembly = ".sgpr_spill_count: 2\n    .vgpr_count:     96\n    .vgpr_spill_count: 3\n    .agpr_count: 4\n"
    assert read_amdgcn(assembly) == (96, 20)


@pytest.mark.parametrize("report", ["", "ptxas fatal : Unsupported .version 9.4", "Used 1 registers, Used 2 registers"])
def test_a_figure_that_cannot_be_read_is_an_error(report):
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_ptxas(report)
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_amdgcn(report)


def test_an_assembler_that_fails_is_an_error():
    with pytest.raises(UnreadableFigure, match="ptxas failed with"):
        resources._ptxas_report("not ptx", 90)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": "decoed"}, "unknown kernel 'decoed'; known: decode, prefill"),
        ({"target": "sm_12"}, "unknown target 'sm_12'; known: sm_80"),
        ({"dtype": "float64"}, "unknown dtype 'float64'; known: float16"),
    ],
)
def test_unknown_names_list_the_known_ones(changed, message):
    with pytest.raises(ValueError, match=message):
        compile_resources(**{"kernel": "decode", "target": "sm_90", "head_dim": 64, **changed})


def test_the_command_prints_a_table_and_writes_json(monkeypatch, tmp_path):
    def made(kernel, target, *, head_dim, dtype):
        return Resources(kernel, target, head_dim, 1, 16, dtype, 100, 8 if head_dim == 256 else 0, 1024, 4)

    monkeypatch.setattr(aot, "compile_resources", made)
    result = CliRunner().invoke(aot.main, ["--target", "sm_90", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 30
    assert rows[0]["registers"] == 100
    assert "30 configurations, 10 with a complaint" in result.output
    assert result.exit_code == 1


def test_configurations_name_dtypes_that_torch_knows():
    assert {getattr(torch, dtype).itemsize for _, _, _, dtype in aot.configurations()} == {2, 4}
