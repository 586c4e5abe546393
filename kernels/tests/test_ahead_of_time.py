"""What the launcher can choose compiles to machine code without a GPU, within the chip's limits, and no worse than the
committed table says. A part is compiled here; all of it by ``make aot``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from click.testing import CliRunner

from kvproof_kernels import aot, forms
from kvproof_kernels.aot_report import report
from kvproof_kernels.aot_table import Row, read_table, vanished
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.resources import (
    Form,
    Resources,
    UnreadableFigure,
    compile_form,
    complaint,
    read_amdgcn,
    read_ptxas,
)

FOLDER = Path(__file__).parents[1]
TABLE = read_table(FOLDER / "aot.csv")
FORM = forms.attention_form("decode", 128, torch.float16, "sm_90")
ROW = Resources(FORM.kernel, FORM.case, "sm_90", "M=16 N=64", 4, 2, 128, 0, 1024, 0, 16, 32, 0)


def representative(form: Form, target: str) -> bool:
    """Two dozen forms, for half a minute: all of attention on one chip, one shape of it on the others."""
    return bool(form.row_lines) and (target == "sm_90" or form.case == "head dim 128, float16")


@pytest.mark.parametrize(
    ("form", "target"),
    [
        pytest.param(form, target, id=f"{form.kernel}, {form.case}, {target}")
        for target in CHIPS
        for form in forms.forms(target)
        if representative(form, target)
    ],
)
def test_a_form_is_within_the_chips_limits_and_no_worse_than_the_table(form, target):
    row = Row(triton.__version__, compile_form(form, target))
    assert list(aot.complaints(form, row, TABLE)) == []


def test_the_table_and_the_launcher_know_the_same_forms():
    keys = [(triton.__version__, form.kernel, form.case, target) for target in CHIPS for form in forms.forms(target)]
    assert len(set(keys)) == len(keys)
    assert vanished(keys, TABLE, triton.__version__) == []
    known = {row.key for row in TABLE}
    assert not any(key[0] == triton.__version__ for key in known) or set(keys) <= known


def test_the_page_for_people_shows_the_table():
    assert (FOLDER / "AOT.md").read_text(encoding="utf-8") == report(TABLE)


def test_nothing_in_the_table_spills_or_exceeds_a_limit_with_any_version():
    for row in TABLE:
        wrong = complaint(row.resources, replace(FORM, needs_tensor_cores=False))
        assert wrong is None, f"{row.key} {wrong}"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"spill_bytes": 56}, "spills 56 bytes a thread"),
        ({"shared_bytes": 232_449}, "takes 232,449 bytes of shared memory, sm_90 has 232,448"),
        ({"local_memory": 3}, "accesses a thread's own memory, which is the chip's main memory, 3 times"),
        ({"row_bytes": 8}, "loads 8 bytes of a row of K or V at once instead of 16"),
        ({"row_bytes": 0}, "loads 0 bytes of a row of K or V at once instead of 16"),
        ({"tensor_cores": 0}, "uses no tensor cores"),
        ({}, None),
        ({"row_bytes": None}, None),
    ],
)
def test_what_costs_speed_is_a_complaint(changed, wrong):
    assert complaint(replace(ROW, **changed), FORM) == wrong


def test_float32_needs_no_tensor_cores():
    form = forms.attention_form("decode", 128, torch.float32, "sm_90")
    assert complaint(replace(ROW, tensor_cores=0), form) is None


def test_a_tile_that_is_too_large_is_seen_to_spill():
    form = replace(FORM, constants=FORM.constants | {"BLOCK_M": 32, "BLOCK_N": 32}, options={"num_warps": 1})
    row = compile_form(form, "sm_80")
    assert row.spill_bytes > 0
    assert row.local_memory > 0


def test_rows_that_are_not_known_to_be_aligned_are_seen_to_be_loaded_in_pieces():
    row = compile_form(replace(FORM, divisible=FORM.divisible - {"stride_key_head"}), "sm_90")
    assert complaint(row, FORM) == "loads 2 bytes of a row of K or V at once instead of 16"


def test_ptxas_reports_are_read():
    page = """ptxas info    : Function properties for decode_kernel
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size"""
    assert read_ptxas(page) == (168, 20)


def test_amd_metadata_is_read():
    assembly = ".sgpr_spill_count: 2\n    .vgpr_count:     96\n    .vgpr_spill_count: 3\n    .agpr_count: 4\n"
    assert read_amdgcn(assembly) == (96, 20)


@pytest.mark.parametrize("page", ["", "ptxas fatal : Unsupported .version 9.4", "Used 1 registers, Used 2 registers"])
def test_a_figure_that_cannot_be_read_is_an_error(page):
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_ptxas(page)
    with pytest.raises(UnreadableFigure, match="expected one match"):
        read_amdgcn(page)


def test_an_unknown_chip_is_refused_with_those_known():
    with pytest.raises(ValueError, match="unknown target 'sm_12'; known: sm_80"):
        compile_form(FORM, "sm_12")


def test_the_command_keeps_the_table_and_exits_with_1_on_a_complaint(monkeypatch, tmp_path):
    def compiled(form, target):
        return replace(ROW, kernel=form.kernel, case=form.case, target=target, spill_bytes=8 * ("256" in form.case))

    monkeypatch.setattr(aot, "compile_form", compiled)
    files = ["--table", str(tmp_path / "aot.csv"), "--report", str(tmp_path / "AOT.md")]
    result = CliRunner().invoke(aot.main, ["--target", "sm_90", *files])
    rows = read_table(tmp_path / "aot.csv")
    spilt = [row for row in rows if row.resources.spill_bytes]
    assert {row.key[1:] for row in rows} == {(form.kernel, form.case, "sm_90") for form in forms.forms("sm_90")}
    assert spilt
    assert f"{len(rows)} forms, {len(spilt)} complaints" in result.output
    assert result.exit_code == 1
    assert (tmp_path / "AOT.md").read_text() == report(rows)
