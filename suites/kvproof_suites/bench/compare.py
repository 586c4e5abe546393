"""``make compare``: every allocator and every kernel that runs here, each kind in one interleaved run, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import product
from pathlib import Path

import click

from kvproof_suites.bench import attention_side_by_side, side_by_side
from kvproof_suites.bench.attention_turns import Step
from kvproof_suites.environment import cpu_name, describe
from kvproof_suites.published_folder import PUBLISHED, name_of

HALVES = ("allocators", "kernels")
DTYPES = ("float32", "bfloat16")
BLOCK_SIZES = (16, 32, 64, 128)
HEADS, HEAD_DIM = "32/8", 128


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Else reports/published/CPU-DAY/compare.md."
)
@click.option("--only", type=click.Choice(HALVES), default=None, help="Else both.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of the allocators' workload.")
@click.option("--requests", type=click.IntRange(1), default=None, help="Fewer than the workload's 1,500, for a try.")
@click.option("--rounds", type=click.IntRange(2), default=20, show_default=True, help="Launches of each kernel.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--context-len", type=click.IntRange(1), default=2048, show_default=True)
def command(
    output: Path | None,
    only: str | None,
    repeats: int,
    requests: int | None,
    rounds: int,
    batch: int,
    context_len: int,
) -> None:
    """Time what runs on this machine, and add the tables to a Markdown file as they come."""
    output = output or PUBLISHED / name_of(cpu_name(), date.today()) / "compare.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    point = f"{batch}q1s{context_len}"
    steps = [Step(point, HEADS, HEAD_DIM, dtype, block_size) for dtype, block_size in product(DTYPES, BLOCK_SIZES)]
    told = {
        "allocators": side_by_side.parts([], repeats, requests, []),
        "kernels": attention_side_by_side.parts(steps, [], rounds, []),
    }
    with output.open("a", encoding="utf-8") as file:
        for half in [only] if only else HALVES:
            for part in section(half, told[half]):
                file.write(f"{part}\n\n")
                file.flush()
    click.echo(output)


def section(half: str, parts: Iterator[str]) -> Iterator[str]:
    about = describe("cpu")
    yield f"## {half.capitalize()} side by side"
    yield f"{date.today()}, Python {about['python']}, commit {about['git_commit']}"
    yield from parts


if __name__ == "__main__":
    command()
