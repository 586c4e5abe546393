"""The table in kernels/NOTES.md: what the traffic model predicts for a decode step, and what was measured.

A prediction is a bound: the bytes that the plan's programs ask for, at the bandwidth on the chip's data sheet. The
measured share of the roof takes the bytes that any kernel must move, at the bandwidth that the same process reads with.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from kvproof_kernels.tiles import Form, rows_kind, tile_for
from kvproof_kernels.traffic import Shape, compulsory, planned
from kvproof_kernels.work import plan_work
from kvproof_traces.simulation.step_time import GPUS, Gpu

NOTES = Path("kernels", "NOTES.md")
KERNEL = tuple(
    f"kernels/kvproof_kernels/{name}"
    for name in ("attention.py", "combine.py", "steps.py", "work.py", "tiles.py", "tuned.toml")
)
"""What a decode step's time depends on."""
COLUMNS = ("date", "GPU", "kernel", "batch", "context", "block", "must move", "predicted", "measured", "of the roof")
POINTS = ((1, 16_384, 16), (16, 4096, 16), (64, 4096, 16), (64, 4096, 64), (64, 4096, 256), (256, 16_384, 16))
"""(batch, context, block size) of the sweep that the table follows; shuffled tables, Llama-3-8B's heads, bfloat16."""
TABLE = "shuffled"
HEADS = (32, 8, 128, 128)
NOT_RUN = "not run"


@dataclass(frozen=True)
class Prediction:
    """Bytes of one decode step."""

    must_bytes: int
    """Any kernel's."""
    asked_bytes: int
    """Of our programs under their plan, the merge of partial results included."""

    def at_least_ms(self, bytes_per_second: float) -> float:
        return 1e3 * self.asked_bytes / bytes_per_second


def predict(batch: int, context_len: int, block_size: int) -> Prediction:
    shape, group = Shape(*HEADS, block_size, 2, 2), HEADS[0] // HEADS[1]
    tile = tile_for(rows_kind(group), Form(*HEADS[2:], torch.bfloat16, torch.bfloat16), "cuda")
    lens = [context_len] * batch, [1] * batch
    work = plan_work(*lens, rows_per_tile=max(1, tile.block_m // group), step=tile.block_n)
    asked = planned(shape, work.items.tolist(), work.partial_start.tolist(), tile.block_m)
    return Prediction(compulsory(shape, *lens).total, asked.total)


def rows(gpu: str, day: date, version: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of the table, one for each point.

    Args:
        gpu: as CUDA names it; of one without a known data sheet the measured roof stands in.
        day: of the run.
        version: of the kernel.
        records: of the benchmark.
    """
    timed = {key(record): record for record in records if is_followed(record)}
    sheet, roofs = gpu_named(gpu), [1e9 * record["roof_gb_per_second"] for record in timed.values()]
    bandwidth = sheet.memory_bytes_per_second if sheet else max(roofs, default=math.nan)
    start = [day.isoformat(), gpu.removeprefix("NVIDIA "), version]
    return [line(start, point, bandwidth, timed.get(point)) for point in POINTS]


def is_followed(record: Mapping[str, Any]) -> bool:
    """A decode step on cold caches, replayed from a graph where the benchmark tells graphs from launches."""
    usual = record.get("mode") in (None, "graph") and record.get("cache") in (None, "cold")
    return bool(record["timed"]) and record["group"] == "decode" and record["table"] == TABLE and usual


def key(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return record["batch"], record["context_len"], record["block_size"]


def line(
    start: Sequence[str], point: tuple[int, int, int], bytes_per_second: float, record: Mapping[str, Any] | None
) -> str:
    predicted = predict(*point)
    cells = [*start, *(f"{number:,}" for number in point), f"{predicted.must_bytes / 1e6:,.1f} MB"]
    cells.append(f"{predicted.at_least_ms(bytes_per_second):.4f} ms")
    if record is None:
        return row([*cells, NOT_RUN, NOT_RUN])
    quartiles = "{median_ms:.4f} [{q1_ms:.4f} to {q3_ms:.4f}] ms".format(**record)
    return row([*cells, quartiles, f"{100 * record['share_of_roof']:.1f} %"])


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def append(path: Path, lines: Sequence[str]) -> None:
    """Behind the last line of the table, which is the last in the file."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if not text.splitlines()[-1].startswith("|"):
        raise ValueError(f"{path}: the table must be the last thing in it")
    path.write_text("\n".join([text, *lines, ""]), encoding="utf-8")


def version_of(files: Sequence[str] = KERNEL) -> str:
    """The last commit that touched the kernel, with a + where the working tree differs."""
    commit = git("log", "-1", "--format=%h", "--", *files)
    return f"{commit or 'unknown'}{'+' if git('status', '--porcelain', '--', *files) else ''}"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def gpu_named(name: str) -> Gpu | None:
    """The data sheet of a device by the name that CUDA has for it: "NVIDIA H200", "NVIDIA A100-SXM4-80GB"."""
    words = name.lower().replace("-", " ").replace("80gb", "80").split()
    return next((gpu for gpu in GPUS.values() if set(gpu.name.split("-")) <= set(words)), None)
