"""``kvproof trace``: request traces looked at, converted, cut and made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvproof_suites.cli import trace_figures
from kvproof_suites.cli.terminal import show_json, show_table
from kvproof_suites.cli.trace_reading import AT_LEAST_ONE, PATH, opened, reading_options, told, watched

if TYPE_CHECKING:
    from kvproof_traces import Request, Stream

N = TypeVar("N", int, float)
FORCE = click.option("--force", is_flag=True, help="Overwrite OUT where it exists.")


@click.group(short_help="Request traces: look at, convert, cut, make up.")
def command() -> None:
    """Request traces: what is in one, and how to get one.

    Files of many formats are read, gzip and Zstandard as well; the format is found from the content (`kvproof trace
    formats`). A bad row refuses the file, with line and field, unless --skip-bad counts it. What is written is JSON
    Lines that `kvproof replay` and `kvproof run --trace` take; a name in .gz or .zst is compressed, "-" is printed.

    \b
    kvproof trace info AzureLLMInferenceTrace_conv.csv
    kvproof trace convert BurstGPT_1.csv burst.jsonl.gz --skip-bad
    kvproof trace slice conversation_trace.jsonl first.jsonl --seconds=0:600
    kvproof trace generate agents.jsonl --like=agent --num-requests=5000
    """


@command.command(short_help="Lengths, bursts, sharing and hit rates.")
@click.argument("file", type=PATH)
@reading_options
@click.option("--capacity", "capacities", type=AT_LEAST_ONE, multiple=True, help="Tokens of cache; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(file: Path, capacities: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """Rows, lengths, bursts, shared prefixes, and hit rate against capacity of FILE.

    Dispersion is variance ÷ mean of the arrivals in each second. Hit rates are of an LRU prefix cache of that many
    tokens with the prompts in order of arrival and nothing else in it: a server's outputs take room as well.

    \b
    kvproof trace info conversation_trace.jsonl --capacity=3000000
    """
    from kvproof_traces import describe
    from kvproof_traces.sharing import CAPACITIES

    with told():
        trace = opened(file, **options)
        found = describe(_not_none(trace), capacities or CAPACITIES)
    if as_json:
        show_json(trace_figures.record(trace, found))
    else:
        show_table((file.name, ""), trace_figures.rows(trace, found))


@command.command(short_help="Any format into the one that carries all.")
@click.argument("file", type=PATH)
@click.argument("out", type=PATH)
@reading_options
@FORCE
def convert(file: Path, out: Path, force: bool, **options: Any) -> None:
    """Write FILE, in whatever format it is, to OUT in the one that carries everything.

    \b
    kvproof trace convert qwen_traceA_blksz_16.jsonl bailian.jsonl.zst
    kvproof trace convert ShareGPT.json - --bytes-per-token=4 --skip-bad | head
    """
    with told():
        trace = opened(file, **options)
        _write(_not_none(trace), out, force, trace)


@command.command("slice", short_help="A part of a trace, from time 0.")
@click.argument("file", type=PATH)
@click.argument("out", type=PATH)
@reading_options
@click.option("--rows", metavar="START:STOP", help="Requests, counted from 0.")
@click.option("--seconds", metavar="START:STOP", help="By arrival.")
@click.option("--sample", type=AT_LEAST_ONE, help="So many of those, drawn at random.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample.")
@FORCE
def slice_command(
    file: Path,
    out: Path,
    rows: str | None,
    seconds: str | None,
    sample: int | None,
    seed: int,
    force: bool,
    **options: Any,
) -> None:
    """Write a part of FILE to OUT; its times begin at 0.

    START or STOP may be left out; STOP is not taken. A sample thins the traffic: it keeps the time that it spans.

    \b
    kvproof trace slice trace.jsonl hour2.jsonl --seconds=3600:7200
    kvproof trace slice trace.jsonl few.jsonl --rows=:10000 --sample=500 --seed=7
    """
    if sample is None and rows is None and seconds is None:
        raise click.UsageError("give --rows, --seconds or --sample: which part?")
    with told():
        trace = opened(file, **options)
        part = _part(watched(trace), rows, seconds, sample, seed)
        _write(_first(part, f"{file} has no request there"), out, force, trace, from_zero=True)


def _part(
    requests: Iterable[Request], rows: str | None, seconds: str | None, sample: int | None, seed: int
) -> Iterable[Request]:
    from kvproof_traces import slicing

    if rows is not None and seconds is not None:
        raise click.UsageError("--rows and --seconds both say which part; give one of them")
    if rows is not None:
        first, last = _range("--rows", rows, int)
        requests = slicing.rows(requests, first or 0, last)
    if seconds is not None:
        start, stop = _range("--seconds", seconds, float)
        requests = slicing.between(requests, (start or 0.0) * 1000, None if stop is None else stop * 1000)
    return requests if sample is None else slicing.sample(requests, sample, seed)


@command.command(short_help="Made-up traffic, like what was published.")
@click.argument("out", type=PATH, required=False)
@click.option("--like", help="Which traffic.")
@click.option("--num-requests", type=AT_LEAST_ONE, default=1000, show_default=True)
@click.option("--rate", type=float, help="Requests a second; else as published.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--list", "as_list", is_flag=True, help="Show what there is, with the source of its figures.")
@FORCE
def generate(
    out: Path | None, like: str | None, num_requests: int, rate: float | None, seed: int, as_list: bool, force: bool
) -> None:
    """Write made-up traffic to OUT, with the lengths, bursts and sharing of published traffic.

    The same seed gives the same requests. Nothing of any published file is in it.

    \b
    kvproof trace generate --list
    kvproof trace generate chat.jsonl --like=mooncake-chat --num-requests=12000 --seed=1
    """
    from kvproof_traces import PROFILES, generate_like

    if as_list:
        show_table(PROFILE_COLUMNS, map(_profile_row, PROFILES))
        return
    if out is None or like is None:
        raise click.UsageError(f"give OUT and --like, one of {', '.join(PROFILES)}")
    with told():
        _write(generate_like(like, num_requests, seed=seed, requests_per_second=rate), out, force)


@command.command(short_help="The formats that are read.")
def formats() -> None:
    """The formats that are read, and how each looks.

    \b
    kvproof trace formats
    """
    from kvproof_traces import FORMATS

    show_table(("format", "looks"), ((name, format.looks) for name, format in FORMATS.items()))


PROFILE_COLUMNS = ("like", "prompt", "output", "a second", "dispersion", "shared", "what", "source")


def _profile_row(name: str) -> tuple[Any, ...]:
    from kvproof_reports.figures import figure, percent
    from kvproof_traces import PROFILES

    profile = PROFILES[name]
    numbers = (profile.prompt.mean, profile.output.mean, profile.requests_per_second, profile.dispersion)
    return (name, *map(figure, numbers), percent(profile.shared), profile.summary, profile.source)


def _range(option: str, text: str, number: Callable[[str], N]) -> tuple[N | None, N | None]:
    """START:STOP, either of which may be left out."""
    start, colon, stop = text.partition(":")
    try:
        if colon:
            return number(start) if start else None, number(stop) if stop else None
    except ValueError:
        pass
    raise click.UsageError(f"{option}: {text!r} is no range; give START:STOP, such as 0:600")


def _not_none(trace: Stream) -> Iterable[Request]:
    return _first(watched(trace), f"{trace.path} holds no request that could be kept")


def _first(requests: Iterable[Request], otherwise: str) -> Iterable[Request]:
    """The same requests, of which there is one at least."""
    rest = iter(requests)
    first = next(rest, None)
    if first is None:
        raise click.ClickException(otherwise)
    return chain([first], rest)


def _write(
    requests: Iterable[Request], out: Path, force: bool, trace: Stream | None = None, *, from_zero: bool = False
) -> None:
    from kvproof_traces import native_lines, slicing, write_native

    requests = slicing.from_zero(requests) if from_zero else requests
    if str(out) == "-":
        for line in native_lines(requests):
            click.echo(line, nl=False)
        return
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists and is not overwritten; --force does")
    written = write_native(out, requests)
    click.echo(f"wrote {written:,} requests to {out}", err=True)
    for reason, count in (trace.dropped if trace else {}).items():
        click.echo(f"dropped {count:,}: {reason}", err=True)
    for note in trace.notes if trace else ():
        click.echo(f"note: {note}", err=True)
