"""The tables of compiled variants for people: Markdown, one section a chip, versions of Triton side by side, and the
kernels of other libraries behind our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from kvproof_kernels.aot_table import Row
from kvproof_kernels.chips import CHIPS, PARTITIONS
from kvproof_kernels.resources import Resources

HEAD = """# What the kernels take of a chip, without a GPU

Written by `make aot` from `aot.csv` and `aot-peers.csv`; not edited by hand. `make aot` compiles every variant that a
launch can choose down to machine code for each chip, `make aot ONLY=REGEX` a part of them. The table has
{counts}.
Where versions differ, both figures are given, in this order.

| column | what it says |
| --- | --- |
| tile | of attention: M (query row, head) pairs and N tokens, D and R dims of a key, DV of a value |
| registers | a thread; on gfx942 vector registers, accumulation registers included |
| spill | bytes of registers a thread moves out to memory |
| shared | bytes a program |
| held | programs that one SM or CU holds at once, and what a further one would lack: predicted occupancy |
| K, V | bytes of the narrowest load of K and V a thread, in the machine code: 16 is meant, 8 of 8-bit codes |
| tensor | instructions on tensor cores in the code; IEEE products of float32 have none on NVIDIA |

Rows with soft cap or ALiBi, and with head dims above 512 that are not MLA's, are in `aot.csv` alone.
"""
PEERS = """
### Other libraries on {chip}

The attention kernels that vLLM and SGLang launch for the same shapes (`python -m kvproof_kernels.aot_peers`): 32 query
heads and 8 key heads, MLA 128 and 1; blocks of 16 tokens, SGLang's kernels with blocks of one. Their own Python chose
tile, warps and stages for this chip. The same compiler, and no statement about speed.
"""
COLUMNS = ("kernel", "for", "tile", "warps", "stages", "registers", "spill", "shared", "held", "K, V", "tensor")
HIDDEN = re.compile(r"soft cap|head dim 576(?!.*values in keys)")


def report(rows: Iterable[Row], num_variants: int, peers: Iterable[Row] = ()) -> str:
    """The whole page. ``num_variants``: those that there are, on all chips."""
    ours, theirs = sorted(rows, key=_order), sorted(peers, key=_order)
    versions = sorted({row.triton for row in ours}, key=_number, reverse=True)
    have = Counter(row.triton for row in ours)
    counts = [f"{have[version]} of these {num_variants} by Triton {version}" for version in versions]
    page = [HEAD.format(counts=" and ".join(counts) or f"none of these {num_variants}")]
    for chip in CHIPS:
        shown = [row for row in ours if row.resources.target == chip and not HIDDEN.search(row.resources.case)]
        if shown:
            page += [f"## {chip}\n", _limits(chip), *_table(shown, versions)]
        others = [row for row in theirs if row.resources.target == chip]
        if others:
            page += [PEERS.format(chip=chip), *_table(others, sorted({row.triton for row in others}))]
        page += [""] if shown or others else []
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
    for _, of_variant in groupby(rows, key=_order):
        by_version = {row.triton: row.resources for row in of_variant}
        yield _line([by_version[version] for version in versions if version in by_version])


def _line(of_variant: Sequence[Resources]) -> str:
    cells: Sequence[Callable[[Resources], str]] = (
        *(lambda row: row.kernel, lambda row: row.case, lambda row: row.tile),
        *(lambda row: str(row.num_warps), lambda row: str(row.num_stages), lambda row: str(row.registers)),
        *(lambda row: str(row.spill_bytes), lambda row: f"{row.shared_bytes:,}"),
        lambda row: f"{row.occupancy.programs} ({row.occupancy.bound})",
        lambda row: "-" if row.row_bytes is None else str(row.row_bytes),
        lambda row: str(row.tensor_cores),
    )
    return f"| {' | '.join(_both([cell(row) for row in of_variant]) for cell in cells)} |"


def _both(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _order(row: Row) -> tuple[str, list[int | str]]:
    """By kernel, then by case, in which numbers count as numbers."""
    parts = re.split(r"(\d+)", row.resources.case)
    return row.resources.kernel, [int(part) if part.isdigit() else part for part in parts]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())
