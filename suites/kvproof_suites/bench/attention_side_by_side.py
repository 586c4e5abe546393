"""``python -m kvproof_suites.bench.attention_side_by_side``: attention of several kernels in one interleaved run.

Each kernel runs in a process of its own, with the Python that has its library; the processes take turns, A B C A B C,
one launch each, and each round reads a large tensor as well: its bandwidth is the roof of that round, so that whatever
the machine does meanwhile meets all of them and what they are held against.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

import click

from kvproof_suites.bench.attention_turns import DENSE, PAGED, ROOF, Step
from kvproof_suites.bench.heads import DTYPES
from kvproof_suites.bench.paged_launches import problem_of
from kvproof_suites.bench.taking_turns import Entry, Player, Withdrawn, ask, end, everyone, gathered, listed, start
from kvproof_suites.bench.timing import ROOF_BYTES, num_cores
from kvproof_suites.environment import cpu_name

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Row:
    """One kernel at one step, through its table or without one."""

    name: str
    samples: tuple[float, ...] = ()
    """Seconds, by round."""
    roofs: tuple[float, ...] = ()
    """Seconds in which the step's keys and values could be read, by round."""
    reason: str | None = None
    """Why it was not timed."""


@dataclass
class Entrant:
    """One kernel at one step while it is timed."""

    player: Player
    table: str
    reason: str | None
    samples: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.player.name} dense" if self.table == DENSE else self.player.name


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="May be given again; else all.")
@click.option("--block-size", "block_sizes", multiple=True, type=click.IntRange(1), help="Again; else 1, 8, 16 … 256.")
@click.option("--only", multiple=True, metavar="NAME", help="A kernel, as for pytest --impl; again; else all of them.")
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

    Each kernel runs in its own environment where it has one (make env), else with this Python. What it computes is
    held against float64 first. A ratio is the median over the rounds of that round's own.

    \b
    python -m kvproof_suites.bench.attention_side_by_side
    python -m kvproof_suites.bench.attention_side_by_side --dtype bfloat16 --block-size 16 --only cpu --only vllm-cpu
    python -m kvproof_suites.bench.attention_side_by_side --batch 1 --query-len 2048 --block-size 16
    """
    if query_len > context_len:
        raise click.UsageError(f"--query-len {query_len} exceeds --context-len {context_len}")
    if heads[1] < 1 or heads[0] % heads[1]:
        raise click.UsageError(f"--heads {heads[0]} {heads[1]}: the first must be a multiple of the second")
    point = f"{batch}q{query_len}s{context_len}"
    steps = [
        Step(point, f"{heads[0]}/{heads[1]}", head_dim, dtype, block_size)
        for dtype, block_size in product(dtypes or DTYPES, block_sizes or BLOCK_SIZES)
    ]
    kept: list[dict[str, Any]] = []
    for part in parts(steps, [(name, None) for name in only], rounds, kept):
        click.echo(f"{part}\n")
    if json_path is not None:
        json_path.write_text(json.dumps(kept, indent=1) + "\n")
    if not kept:
        raise click.ClickException("no kernel could be timed")


def parts(steps: Sequence[Step], entries: Sequence[Entry], rounds: int, kept: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown; every sample of each step is added to ``kept``. No ``entries``: every kernel."""
    everybody = everyone("kernel", first="cpu")
    with ExitStack() as ended, gathered(entries or everybody, begin, required=bool(entries)) as (kernels, absent):
        roof = begin(ROOF, sys.executable)
        ended.callback(end, roof)
        if absent:
            yield listed(absent)
        if not kernels:
            return
        yield f"{cpu_name()}, {num_cores()} threads of {', '.join(map(about, kernels))}; {rounds} rounds"
        for dtype, group in groupby(steps, key=lambda step: step.dtype):
            table = []
            for step in group:
                rows = compare(step, roof, kernels, rounds)
                table += [roof_cells(step, rows[0].roofs), *(cells(step, row, rows[0]) for row in rows)]
                kept.append({"step": asdict(step), "rows": [asdict(row) for row in rows]})
            yield f"**{dtype}**\n\n{markdown(table, rows[0].name)}"


def begin(name: str, python: str | None) -> Player:
    """Memory is asked for in huge pages: on pages of 4 KiB even the roof is only two thirds as high."""
    click.echo(f"start {name}", err=True)
    settings = {"OMP_NUM_THREADS": str(num_cores()), "THP_MEM_ALLOC_ENABLE": "1"}
    return start(name, "kvproof_suites.bench.attention_turns", [name], python, settings)


def about(player: Player) -> str:
    return f"{player.name} {player.about['version'] or ''} (torch {player.about['torch']})".replace("  ", " ")


def compare(step: Step, roof: Player, kernels: Sequence[Player], rounds: int) -> list[Row]:
    """Prepare and judge, then time in turns: first those that read blocks, then what some also do without."""
    entrants = [entrant for player in kernels for entrant in enter(step, player)]
    entrants.sort(key=lambda entrant: entrant.table == DENSE)
    roofs = []
    for _ in range(rounds):
        roofs.append(ask(roof, {})["seconds"] * kv_bytes(step) / ROOF_BYTES)
        for entrant in entrants:
            if entrant.reason is None:
                take_turn(entrant)
    return [
        Row(one.name, tuple(one.samples) if one.reason is None else (), tuple(roofs), one.reason) for one in entrants
    ]


def enter(step: Step, player: Player) -> list[Entrant]:
    click.echo(f"{step.dtype}, block size {step.block_size}: {player.name}", err=True)
    try:
        tables = ask(player, {"step": asdict(step)})["tables"]
    except Withdrawn as reason:
        tables = {PAGED: str(reason)}
    return [Entrant(player, table, why_not) for table, why_not in tables.items()]


def take_turn(entrant: Entrant) -> None:
    try:
        entrant.samples.append(ask(entrant.player, {"table": entrant.table})["seconds"])
    except Withdrawn as reason:
        entrant.reason = str(reason)


def kv_bytes(step: Step) -> int:
    """Keys and values of all contexts, once."""
    return problem_of(step.cell(PAGED)).kv_bytes


def roof_cells(step: Step, roofs: Sequence[float]) -> list[str]:
    shown, speed = told(step, roofs)
    return [str(step.block_size), ROOF, shown, speed, "", ""]


def told(step: Step, samples: Sequence[float]) -> tuple[str, str]:
    """Milliseconds, and the GB/s at which the step's keys and values were read."""
    q1, median, q3 = quartiles([1e3 * seconds for seconds in samples])
    return f"{median:.1f} [{q1:.1f} to {q3:.1f}]", f"{kv_bytes(step) / median / 1e6:.1f}"


def cells(step: Step, row: Row, first: Row) -> list[str]:
    if row.reason is not None:
        return [str(step.block_size), row.name, row.reason.replace("|", "/"), "", "", ""]
    shown, speed = told(step, row.samples)
    decodes = step.cell(PAGED).group == "decode"  # a prompt is bounded by multiplications
    read = (speed, ratio(row.samples, row.roofs)) if decodes else ("", "")
    against = ratio(row.samples, first.samples) if first.samples else ""
    return [str(step.block_size), row.name, shown, *read, against]


def ratio(samples: Sequence[float], others: Sequence[float]) -> str:
    """Of each round's own: median [quartiles]."""
    return "{1:.2f} [{0:.2f} to {2:.2f}]".format(*quartiles([a / b for a, b in zip(samples, others, strict=True)]))


def quartiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    q1, median, q3 = statistics.quantiles(numbers, n=4, method="inclusive")
    return q1, median, q3


def markdown(rows: Sequence[Sequence[str]], first: str) -> str:
    header = ["block", "kernel", "ms", "GB/s", "× roof", f"× {first}"]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


if __name__ == "__main__":
    command()
