"""SPEC.md prints what the budget catches and misses, as it is found here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from selftest.nightly.power import DRAWS, DTYPES, LENGTHS, rejections

SPEC = Path(__file__).parents[3] / "SPEC.md"
ROW = re.compile(r"^\| ([\d,]+) \| (\w+) \| (.*) \|$", re.MULTILINE)
SHOWN = LENGTHS if os.environ.get("KVPROOF_NIGHTLY") else LENGTHS[:2]
SLACK = 1
"""Draws whose error lies so near its bound that another order of summation turns the verdict."""


def written_table() -> dict[tuple[int, str], list[int]]:
    table = SPEC.read_text(encoding="utf-8").partition("<!-- power")[2].partition("<!-- end")[0]
    return {
        (int(context.replace(",", "")), dtype): [int(cell.partition("/")[0]) for cell in cells.split(" | ")]
        for context, dtype, cells in ROW.findall(table)
    }


def test_the_document_has_a_row_for_every_length_and_type() -> None:
    assert list(written_table()) == [(context, dtype) for context in LENGTHS for dtype in DTYPES]


@pytest.mark.parametrize("context", SHOWN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_document_says_how_often_each_mistake_is_rejected(context: int, dtype: str) -> None:
    found = list(rejections(dtype, context).values())
    written = written_table()[context, dtype]
    assert all(abs(a - b) <= SLACK for a, b in zip(found, written, strict=True)), f"found {found} of {DRAWS}"


def test_a_right_kernel_is_never_rejected() -> None:
    assert all(counts[0] == 0 for counts in written_table().values())
