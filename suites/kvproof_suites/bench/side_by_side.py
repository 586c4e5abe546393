"""``python -m kvproof_suites.bench.side_by_side``: the serving workload of several allocators in one interleaved run.

Each implementation runs in a process of its own, with the Python that has its library; the processes take turns, A B C
A B C, one repeat each, so that whatever the machine does meanwhile meets all of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from kvproof_suites.bench.serving_figures import TIMES, Figures, summarize
from kvproof_suites.bench.taking_turns import Entry, Player, Withdrawn, ask, everyone, gathered, listed, start
from kvproof_suites.environment import cpu_name


@dataclass
class Contestant:
    """A worker process and what it has measured so far."""

    player: Player
    repeats: list[dict[str, Figures]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.player.name

    def summary(self, workload: str) -> Figures:
        return summarize([each[workload] for each in self.repeats])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--impl", "named", multiple=True, metavar="NAME", help="Again for more; else every allocator.")
@click.option("--env", "elsewhere", multiple=True, metavar="NAME=PYTHON", help="Runs with another Python; again.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=None, help="Fewer than 1,500, for a try.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None, help="Keep every repeat there.")
def command(
    named: Sequence[str], elsewhere: Sequence[str], repeats: int, requests: int | None, json_path: Path | None
) -> None:
    """Time allocators against each other, in turns, and print one Markdown table for each workload.

    Each runs in its own environment where it has one (make env), else with this Python. The first one is what the
    others are compared with: a ratio is the median over the repeats of a pair's own ratio.

    \b
    python -m kvproof_suites.bench.side_by_side
    python -m kvproof_suites.bench.side_by_side --impl paged --impl vllm
    python -m kvproof_suites.bench.side_by_side --impl paged --env vllm=envs/vllm/bin/python
    """
    entries = [(name, None) for name in named] + [split(given) for given in elsewhere]
    kept: list[dict[str, Any]] = []
    for part in parts(entries, repeats, requests, kept):
        click.echo(f"{part}\n")
    if json_path is not None:
        json_path.write_text(json.dumps(kept, indent=1) + "\n")
    if not kept:
        raise click.ClickException("no allocator could be timed")


def split(given: str) -> tuple[str, str]:
    name, separator, python = given.partition("=")
    if not separator or not python:
        raise click.BadParameter(f"{given!r}: give a name and the Python that has its library, as vllm=PYTHON")
    return name, python


def parts(entries: Sequence[Entry], repeats: int, requests: int | None, kept: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown; what each contestant told and measured is added to ``kept``. No ``entries``: every allocator."""
    everybody = everyone("allocator", first="paged")
    with gathered(entries or everybody, partial(begin, requests), required=bool(entries)) as (players, absent):
        contestants = [Contestant(player) for player in players]
        for number in range(repeats):
            for contestant in list(contestants):
                click.echo(f"repeat {number + 1} of {repeats}: {contestant.name}", err=True)
                try:
                    contestant.repeats.append(ask(contestant.player, {}))
                except Withdrawn as reason:
                    contestants.remove(contestant)
                    absent.append((contestant.name, str(reason)))
    kept += [c.player.about | {"repeats": c.repeats} for c in contestants]
    if contestants:
        require_equal(contestants)
        yield tables(contestants)
    if absent:
        yield listed(absent)


def begin(requests: int | None, name: str, python: str | None) -> Player:
    click.echo(f"start {name}", err=True)
    fewer = [] if requests is None else ["--requests", str(requests)]
    arguments = ["--impl", name, "--turns", *fewer]
    return start(name, "kvproof_suites.bench.serving", arguments, python, {"OMP_NUM_THREADS": "1"})


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
    figures, about = contestant.summary(workload), contestant.player.about
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
