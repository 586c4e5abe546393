"""The table of compiled forms for people: Markdown, one section a chip, the versions of Triton side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from kvproof_kernels.aot_table import Row
from kvproof_kernels.chips import CHIPS, PARTITIONS
from kvproof_kernels.resources import Resources

HEAD = """# What the kernels take of a chip, without a GPU

Written by `make aot` from `aot.csv`; not edited by hand. Every form that the launcher can choose is compiled down to
machine code for each chip{versions}. Where the versions differ, both figures are given, in this order.

| column | what it says |
| --- | --- |
| registers | a thread; on gfx942 vector registers, accumulation registers included |
| spill | bytes of registers a thread moves out to memory |
| shared | bytes a program |
| a SM | programs, and warps of them, that one SM or CU holds at once: predicted occupancy, and what bounds it |
| K, V | the narrowest load of K and V, bytes a thread: 16 is the widest there is |
| tensor | instructions on tensor cores in the code; IEEE products of float32 have none on NVIDIA |
| local | accesses to a thread's own memory in the code |
"""
COLUMNS = (
    "kernel",
    "for",
    "tile",
    "warps",
    "stages",
    "registers",
    "spill",
    "shared",
    "a SM",
    "K, V",
    "tensor",
    "local",
)


def report(rows: Iterable[Row]) -> str:
    """The whole page."""
    rows = sorted(rows, key=_order)
    versions = sorted({row.triton for row in rows}, key=_number, reverse=True)
    page = [HEAD.format(versions=f" by Triton {' and '.join(versions)}" if versions else "")]
    for chip in CHIPS:
        of_chip = [row for row in rows if row.resources.target == chip]
        if of_chip:
            page += [f"## {chip}\n", _limits(chip), *_table(of_chip, versions), ""]
    return "\n".join(page)


def _limits(name: str) -> str:
    chip = CHIPS[name]
    tensor = f", {chip.tensor_columns} columns of tensor memory" if chip.tensor_columns else ""
    return (
        f"A program may have {chip.shared_limit:,} bytes of shared memory. A multiprocessor has {chip.shared_bytes:,}, "
        f"{PARTITIONS * chip.partition_registers:,} registers, room for {PARTITIONS * chip.partition_warps} warps"
        f"{tensor}.\n"
    )


def _table(rows: Sequence[Row], versions: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    for _, of_form in groupby(rows, key=_order):
        by_version = {row.triton: row.resources for row in of_form}
        yield _line([by_version[version] for version in versions if version in by_version])


def _line(of_form: Sequence[Resources]) -> str:
    cells: Sequence[Callable[[Resources], str]] = (
        *(lambda row: row.kernel, lambda row: row.case, lambda row: row.tile),
        *(lambda row: str(row.num_warps), lambda row: str(row.num_stages), lambda row: str(row.registers)),
        *(lambda row: str(row.spill_bytes), lambda row: f"{row.shared_bytes:,}", _held),
        lambda row: "-" if row.row_bytes is None else str(row.row_bytes),
        *(lambda row: str(row.tensor_cores), lambda row: str(row.local_memory)),
    )
    return f"| {' | '.join(_both([cell(row) for row in of_form]) for cell in cells)} |"


def _held(row: Resources) -> str:
    held = row.occupancy
    return f"{held.programs} ({held.warps} warps; {held.bound})"


def _both(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _order(row: Row) -> tuple[str, list[int | str]]:
    """By kernel, then by case, in which numbers count as numbers."""
    parts = re.split(r"(\d+)", row.resources.case)
    return row.resources.kernel, [int(part) if part.isdigit() else part for part in parts]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())
