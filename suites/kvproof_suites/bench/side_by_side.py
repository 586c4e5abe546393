"""``python -m kvproof_suites.bench.side_by_side``: the serving workload of several allocators in one interleaved run.

Each implementation runs in a process of its own, with the Python that has its library; the processes take turns, A B C
A B C, one repeat each, so that whatever the machine does meanwhile meets all of them. Who waits uses no processor.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from kvproof_suites.bench.serving_figures import TIMES, Figures, summarize
from kvproof_suites.environment import cpu_name

MOST_SECONDS_A_TURN = 300.0


@dataclass
class Contestant:
    """A worker process and what it has told so far."""

    name: str
    process: subprocess.Popen[str]
    about: dict[str, Any] = field(default_factory=dict)
    repeats: list[dict[str, Figures]] = field(default_factory=list)

    def summary(self, workload: str) -> Figures:
        return summarize([each[workload] for each in self.repeats])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--impl", "here", multiple=True, metavar="NAME", help="Runs with this Python; may be given again.")
@click.option("--env", "elsewhere", multiple=True, metavar="NAME=PYTHON", help="Runs with another Python; again.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=None, help="Fewer than 1,500, for a try.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None, help="Keep every repeat there.")
def command(
    here: Sequence[str], elsewhere: Sequence[str], repeats: int, requests: int | None, json_path: Path | None
) -> None:
    """Time allocators against each other, in turns, and print one Markdown table for each workload.

    The first one named is what the others are compared with: a ratio is the median over the repeats of a pair's own
    ratio.

    \b
    python -m kvproof_suites.bench.side_by_side --impl paged --impl paged-python
    python -m kvproof_suites.bench.side_by_side --impl paged --env vllm=envs/vllm/bin/python
    """
    pairs = [(name, sys.executable) for name in here] + [split(given) for given in elsewhere]
    if not pairs:
        raise click.UsageError("names no implementation; give --impl NAME or --env NAME=PYTHON")
    contestants = [start(name, python, requests) for name, python in pairs]
    try:
        for contestant in contestants:
            contestant.about = hear(contestant)
        for number in range(repeats):
            for contestant in contestants:
                click.echo(f"repeat {number + 1} of {repeats}: {contestant.name}", err=True)
                contestant.repeats.append(ask(contestant))
    finally:
        for contestant in contestants:
            contestant.process.kill()
            contestant.process.wait()
    require_equal(contestants)
    if json_path is not None:
        json_path.write_text(json.dumps([c.about | {"repeats": c.repeats} for c in contestants], indent=1) + "\n")
    click.echo(tables(contestants))


def split(given: str) -> tuple[str, str]:
    name, separator, python = given.partition("=")
    if not separator or not python:
        raise click.BadParameter(f"{given!r}: give a name and the Python that has its library, as vllm=PYTHON")
    return name, python


def start(name: str, python: str, requests: int | None) -> Contestant:
    arguments = ["-m", "kvproof_suites.bench.serving", "--impl", name, "--turns"]
    if requests is not None:
        arguments += ["--requests", str(requests)]
    try:
        process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    except OSError as error:
        raise click.BadParameter(f"{name}: {python} can't be started: {error}") from error
    return Contestant(name, process)


def ask(contestant: Contestant) -> dict[str, Any]:
    """Give it its turn, and wait for what it measured."""
    assert contestant.process.stdin is not None
    contestant.process.stdin.write("\n")
    contestant.process.stdin.flush()
    return hear(contestant)


def hear(contestant: Contestant) -> dict[str, Any]:
    """The next JSON line of a worker; other lines, which libraries print while they are imported, are passed over.

    Raises:
        click.ClickException: it ended, having said why on standard error, or says nothing for too long.
    """
    output = contestant.process.stdout
    assert output is not None
    while select.select([output], [], [], MOST_SECONDS_A_TURN)[0]:
        line = output.readline()
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
        if not line:
            raise click.ClickException(f"{contestant.name} ended with code {contestant.process.wait()}")
    raise click.ClickException(f"{contestant.name} said nothing for {MOST_SECONDS_A_TURN:.0f} s")


def require_equal(contestants: Sequence[Contestant]) -> None:
    """Told, and no failure: a policy may hit less, or count otherwise. The tables show both figures."""
    for workload in contestants[0].repeats[0]:
        seen = {c.name: (c.summary(workload)["hit_rate"], c.summary(workload)["min_free_blocks"]) for c in contestants}
        if len(set(seen.values())) > 1:
            click.echo(f"{workload}: (hit rate, fewest free blocks) differ: {seen}", err=True)


def tables(contestants: Sequence[Contestant]) -> str:
    parts = [
        f"{cpu_name()}, {len(contestants[0].repeats)} repeats in turns: median [lowest to highest]; "
        f"ratio: ns_per_append over that of {contestants[0].name}"
    ]
    for workload in contestants[0].repeats[0]:
        header = [
            "allocator",
            *TIMES,
            "step tensors",
            "bytes a block",
            "hit rate",
            "fewest free",
            "ratio of ns_per_append",
        ]
        rows = [row(contestant, workload, contestants[0]) for contestant in contestants]
        lines = ["| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows]]
        parts.append(f"**{workload}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def row(contestant: Contestant, workload: str, first: Contestant) -> list[str]:
    figures, about = contestant.summary(workload), contestant.about
    pairs = zip(contestant.repeats, first.repeats, strict=True)
    ratio = statistics.median(a[workload]["ns_per_append"] / b[workload]["ns_per_append"] for a, b in pairs)
    return [
        f"{contestant.name} {about['version'] or ''}".strip(),
        *(spread(figures[name], figures["spread"][name]) for name in TIMES),
        "included" if figures["step_tensors_included"] else "apart",
        f"{about['bytes_per_block']:.0f} ({about['bytes_found_by']})",
        f"{figures['hit_rate']:.3f}",
        f"{figures['min_free_blocks']:,}",
        f"{ratio:.2f}",
    ]


def spread(median: float, ends: Sequence[float]) -> str:
    return f"{short(median)} [{short(ends[0])} to {short(ends[1])}]"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    command()
