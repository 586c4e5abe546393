"""Find tiles that this GPU prefers, and write them into the table that launches look up.

    python -m kvproof_kernels.tune [--model llama-3-8b] [--block-size 16] [--rounds 60] [--dry-run]

Candidates are compiled ahead of time first; what spills, or fails the gate otherwise, is out. The rest take turns on
cold caches. A tile is adopted where it gives attention, is faster than that of ``tiles.py`` by more than the noise in
one workload, and slower in none. Where that is no longer so, its line is taken out. Needs a CUDA device.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from kvproof_kernels.candidates import candidates, compiled
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.contest import Clock, Verdict, contest
from kvproof_kernels.device_clock import DeviceClock
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.launch import backend_of
from kvproof_kernels.tiles import Configuration, Form, rows_kind
from kvproof_kernels.trial import Trial, Workload
from kvproof_kernels.tuned import TABLE, Key, Place, Tuned, arch_of, read_table, write_table

BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
MODELS: Mapping[str, tuple[int, int, Form]] = {
    "llama-3-8b": (32, 8, Form(128, 128, BF16, BF16)),
    "llama-3-8b-fp16": (32, 8, Form(128, 128, FP16, FP16)),
    "llama-3-8b-fp8": (32, 8, Form(128, 128, BF16, E4M3)),
    "llama-3-70b": (64, 8, Form(128, 128, BF16, BF16)),
    "llama-2-7b": (32, 32, Form(128, 128, BF16, BF16)),
    "gpt-oss": (64, 8, Form(64, 64, BF16, BF16)),
    "gemma-2-9b": (16, 8, Form(256, 256, BF16, BF16)),
    "deepseek-v3": (128, 1, Form(576, 512, BF16, BF16, mla=True)),
}
"""Query heads, key heads and form of attention layers in use; of gpt-oss and Gemma the layers' plain part."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
WORKLOADS = (Workload(64, 1, 4095), Workload(1, 1, 32_767), Workload(4, 512, 2047), Workload(1, 2047, 2047))
"""Decode in a large batch and of one long context, chunks, a prompt; the last slot of each last block is nobody's."""
NO_DEVICE = "make tune: torch finds no CUDA device on this machine, so nothing was measured and the table is as it was"


@dataclass(frozen=True)
class Cell:
    """What one line of the table is about."""

    model: str
    geometry: Geometry
    rows: str
    workloads: Sequence[Workload]

    def key(self, arch: str) -> Key:
        place = Place(arch, self.geometry.group_size, self.geometry.block_size)
        return Key.of(place, self.rows, self.geometry.form)

    def __str__(self) -> str:
        return f"{self.model}, block size {self.geometry.block_size}, {self.rows} rows"


def cells(models: Sequence[str], block_sizes: Sequence[int]) -> list[Cell]:
    """One a model, block size and kind of rows; block sizes last, since they share what is compiled."""
    found = []
    for model in models:
        num_q_heads, num_kv_heads, form = MODELS[model]
        for rows in ("few", "many"):
            fitting = [w for w in WORKLOADS if rows_kind(w.query_len * (num_q_heads // num_kv_heads)) == rows]
            for block_size in block_sizes if fitting else ():
                dims = (num_q_heads, num_kv_heads, form.head_dim, form.value_dim, block_size)
                scale = 1 / math.sqrt(form.head_dim)
                geometry = Geometry(*dims, form.dtype, form.kv_dtype, scale, mla=form.mla)
                found.append(Cell(model, geometry, rows, fitting))
    return found


@functools.cache
def admitted(rows: str, form: Form, backend: str, arch: str) -> tuple[list[Configuration], Counter[str]]:
    """Candidates that pass the ahead-of-time gate, that of ``tiles.py`` first, and how often which complaint was made
    of the others; compiled once for all block sizes."""
    default, *others = candidates(rows, form, backend)
    complaints = {other: compiled(rows, form, other, arch)[1] for other in others}
    out = Counter(complaint.split()[0] for complaint in complaints.values() if complaint)
    return [default, *(other for other, complaint in complaints.items() if complaint is None)], out


def trials(cell: Cell, device: torch.device, cache_bytes: int, seed: int) -> list[Trial]:
    return [Trial(cell.geometry, w, device, num_turns(cell.geometry, w, cache_bytes), seed) for w in cell.workloads]


def num_turns(geometry: Geometry, workload: Workload, cache_bytes: int) -> int:
    """Batches that together are twice what the cache holds; two at least."""
    dims = geometry.head_dim + (0 if geometry.mla else geometry.value_dim)
    tokens = workload.batch * workload.context_len
    kv_bytes = tokens * geometry.num_kv_heads * dims * geometry.kv_dtype.itemsize
    return max(2, -(-2 * cache_bytes // kv_bytes))


def told(cell: Cell, verdict: Verdict, dropped: Mapping[str, int]) -> str:
    """What a person sees of a cell."""
    lines = [f"{cell}: {verdict.default}, not compiled as wanted: {dict(dropped) or 'none'}"]
    for i, workload in enumerate(cell.workloads):
        lines.append(f"  {workload}: {verdict.default_ms[i]:.4f} ms, against itself {verdict.noise[i]}")
        lines += [f"    {final.tile}: {final.speedups[i]} times as fast" for final in verdict.finals]
    lines += [f"  WRONG {tile}: {fault}" for tile, fault in verdict.faults.items()]
    lines.append(f"  adopted: {verdict.best.tile if verdict.best else 'none, the tile of tiles.py stays'}")
    return "\n".join(lines)


def tune(
    cell: Cell, device: torch.device, arch: str, clock: Clock, rounds: int, seed: int, cache_bytes: int
) -> tuple[Tuned | None, str]:
    """The line of the table for ``cell``, or None, and what led to it."""
    backend = backend_of(device)
    listed, dropped = admitted(cell.rows, cell.geometry.form, backend, arch)
    verdict = contest(listed, trials(cell, device, cache_bytes, seed), clock, rounds)
    text, best = told(cell, verdict, dropped), verdict.best
    if best is None:
        return None, text
    return Tuned(cell.key(arch), best.tile, round(max(speedup.low for speedup in best.speedups), 3)), text


@click.command(help=__doc__)
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only this; repeatable.")
@click.option("--block-size", "block_sizes", multiple=True, type=click.IntRange(1, 256), help="Only this; repeatable.")
@click.option("--rounds", type=click.IntRange(20), default=60, show_default=True, help="Of the last contest.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--table", "path", type=click.Path(path_type=Path), default=TABLE, help="Read and written.")
@click.option("--dry-run", is_flag=True, help="List what would be tried; needs no device.")
def main(
    models: tuple[str, ...], block_sizes: tuple[int, ...], rounds: int, seed: int, path: Path, dry_run: bool
) -> None:
    wanted = cells(models or list(MODELS), block_sizes or BLOCK_SIZES)
    if dry_run:
        for cell in wanted:
            listed = candidates(cell.rows, cell.geometry.form, "cuda")
            print(f"{cell}: {len(listed)} tiles, {len(cell.workloads)} workloads")
        return
    if not torch.cuda.is_available():
        sys.exit(NO_DEVICE)
    device = torch.device("cuda", torch.cuda.current_device())
    arch, cache_bytes = arch_of(device), torch.cuda.get_device_properties(device).L2_cache_size
    if arch not in CHIPS:
        sys.exit(f"make tune: no limits are known for {arch}; known: {', '.join(CHIPS)}")
    entries, clock = read_table(path), DeviceClock(device)
    for cell in wanted:
        line, text = tune(cell, device, arch, clock, rounds, seed, cache_bytes)
        print(text, flush=True)
        entries.pop(cell.key(arch), None)
        entries |= {line.key: line} if line else {}
        write_table(path, entries.values())  # after each one: a run that is stopped keeps what it found


if __name__ == "__main__":
    main()
