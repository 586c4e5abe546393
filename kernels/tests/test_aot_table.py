"""The committed table of compiled forms: it is kept, compared with, and shown as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof_kernels.aot_report import report
from kvproof_kernels.aot_table import Row, read_table, regression, vanished, write_table
from kvproof_kernels.resources import Resources

KNOWN = Resources("decode", "head dim 64, float16", "sm_90", "M=16 N=64", 4, 2, 128, 0, 1024, 0, 16, 32, 0)
TABLE = [Row("3.8.0", KNOWN)]


def test_what_is_written_is_read(tmp_path):
    rows = [*TABLE, Row("3.6.0", replace(KNOWN, row_bytes=None))]
    write_table(tmp_path / "aot.csv", rows)
    assert set(read_table(tmp_path / "aot.csv")) == set(rows)


def test_the_order_of_rows_does_not_matter(tmp_path):
    rows = [*TABLE, Row("3.8.0", replace(KNOWN, case="another")), Row("3.6.0", KNOWN)]
    write_table(tmp_path / "one.csv", rows)
    write_table(tmp_path / "other.csv", reversed(rows))
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()


def test_a_table_with_other_columns_is_refused(tmp_path):
    (tmp_path / "aot.csv").write_text("triton,kernel\n3.8.0,decode\n")
    with pytest.raises(ValueError, match=r"has columns \['triton', 'kernel'\], not .*make aot"):
        read_table(tmp_path / "aot.csv")


def test_no_file_is_no_rows(tmp_path):
    assert read_table(tmp_path / "aot.csv") == []


def test_fewer_programs_on_a_multiprocessor_are_a_regression():
    found = regression(Row("3.8.0", replace(KNOWN, registers=129)), TABLE)
    assert found is not None
    assert "decode (head dim 64, float16) on sm_90 with Triton 3.8.0: 3 programs a multiprocessor, 4 in" in found
    assert "for lack of registers (registers 128 -> 129)" in found
    assert "make aot" in found


def test_more_registers_without_effect_are_none():
    assert (
        regression(Row("3.8.0", replace(KNOWN, registers=120)), [Row("3.8.0", replace(KNOWN, registers=113))]) is None
    )


def test_a_variant_that_is_not_in_the_table_is_compared_with_nothing():
    assert regression(Row("3.8.0", replace(KNOWN, case="head dim 96", registers=255)), TABLE) is None


def test_a_version_without_rows_is_compared_with_nothing():
    assert regression(Row("3.9.0", replace(KNOWN, registers=255)), TABLE) is None
    assert vanished([], TABLE, "3.9.0") == []


def test_a_form_that_is_no_longer_compiled_is_told():
    (found,) = vanished([("3.8.0", "decode", "head dim 64, float16", "sm_80")], TABLE, "3.8.0")
    assert "decode / head dim 64, float16 / sm_90 is in the table and no longer compiled" in found
    assert vanished([TABLE[0].key], TABLE, "3.8.0") == []


def test_the_report_shows_versions_side_by_side_where_they_differ():
    page = report([*TABLE, Row("3.6.0", replace(KNOWN, registers=140))], 7)
    assert "1 of these 7 by Triton 3.8.0 and 1 of these 7 by Triton 3.6.0" in page
    assert "| 128 / 140 |" in page
    assert "| 1,024 |" in page
    assert "| 4 (registers) / 3 (registers) |" in page


def test_the_report_orders_numbers_as_numbers():
    page = report([Row("3.8.0", replace(KNOWN, case=f"head dim {dim}")) for dim in (128, 64)], 7)
    assert page.index("head dim 64") < page.index("head dim 128")


def test_other_libraries_stand_behind_our_own_on_each_chip():
    other = Row("3.8.0", replace(KNOWN, kernel="vllm unified"))
    page = report(TABLE, 7, [other])
    assert page.index("## sm_90") < page.index("| decode |") < page.index("### Other libraries on sm_90")
    assert page.index("### Other libraries on sm_90") < page.index("| vllm unified |")
    assert "Other libraries" not in report(TABLE, 7)
