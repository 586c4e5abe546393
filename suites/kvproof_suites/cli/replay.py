"""``kvproof replay``: what allocators make of real traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvproof_suites.cli import replay_history, replaying
from kvproof_suites.cli.terminal import show_json, show_table
from kvproof_suites.cli.trace_reading import reading_options
from kvproof_suites.memory import lack_of_room

AT_LEAST_ONE = click.IntRange(min=1)
INT32 = click.IntRange(min=1, max=2**31 - 1)
"""Block ids are 32 bits wide."""
BLOCK_BYTES = 32
"""Of bookkeeping, as our allocator has them; few have less."""


@click.command(short_help="What real allocators make of a trace.")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option(
    "--impl", "--allocator", default=replaying.ALLOCATORS, show_default=True, help="Allocators, separated by commas."
)
@click.option("--limit", type=AT_LEAST_ONE, default=replaying.LIMIT, show_default=True, help="Requests to replay.")
@click.option("--block-size", type=INT32, default=replaying.BLOCK_SIZE, show_default=True, help="Tokens a block.")
@click.option("--num-blocks", type=INT32, default=replaying.NUM_BLOCKS, show_default=True, help="Of the pool.")
@click.option("--max-num-seqs", type=AT_LEAST_ONE, default=256, show_default=True, help="Sequences that run at once.")
@reading_options
@click.option("--churned", type=click.Path(path_type=Path), help="Write the block tables left behind to this file.")
@click.option("--record", type=click.Path(path_type=Path), help="Write every operation and its result to this file.")
@click.option("--compare-only", is_flag=True, help="Of a history: compare results, without the laws; for long ones.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.pass_context
def command(
    context: click.Context,
    /,
    trace: Path | None,
    impl: str,
    limit: int,
    block_size: int,
    num_blocks: int,
    max_num_seqs: int,
    churned: Path | None,
    record: Path | None,
    compare_only: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    """Replay the first requests of TRACE through allocators: waste, capacity, preemptions, hit rate.

    A history, which a failed law, --record or `kvproof_impls.recorded` in your own engine leaves behind, is replayed
    operation by operation, with the shadow pool, under all laws: exit code 1 when one is broken. Its results are
    compared: what was refused, hits, free blocks, copies and slots, block ids aside.

    Without TRACE, a made-up sample. Waste is the share of held slots without a token; peak and mean count the
    sequences that ran at once. What --churned and --record write comes from the first allocator; block tables feed
    `pytest --churned`.

    \b
    kvproof replay AzureLLMInferenceTrace_conv.csv
    kvproof replay results/20260101-120000-1/repro/C1-0a1b2c3d.jsonl --allocator my_blocks:factory
    kvproof replay trace.jsonl --impl=paged,my_blocks:factory --num-blocks=8192 --churned=churned.json
    kvproof replay trace.jsonl --impl=my_blocks:factory --record=history.jsonl
    kvproof replay history.jsonl --allocator=paged,reference
    """
    if trace is not None and replay_history.is_history(trace):
        of_traces = [name for name in context.params if name not in ("trace", "impl", "compare_only")]
        given = [name for name in of_traces if is_given(context, name)]
        if given:
            option = given[0].removeprefix("as_").replace("_", "-")
            raise click.UsageError(f"{trace} is a history, which has no use for --{option}")
        replay_history.replay(trace, impl, judged=not compare_only)
        return
    if compare_only:
        raise click.UsageError("--compare-only goes with a history, and there are no results in a trace")
    _refuse_one_file_for_two({"TRACE": trace, "--record": record, "--churned": churned})
    _refuse_more_than_fits(num_blocks)
    loaded = replaying.load_trace(trace, limit, **reading)
    allocators = replaying.load_allocators(impl)
    sizes = {"block_size": block_size, "num_blocks": num_blocks, "max_num_seqs": max_num_seqs}
    try:
        replayed = list(replaying.replay_through(allocators, loaded, **sizes, record=record))
    except OSError as error:
        raise click.ClickException(f"{record}: {error.strerror}") from None
    except replaying.AllocatorFailed as error:
        click.echo(f"the replay broke off in {error}", err=True)
        if record:
            click.echo(f"what led there is in {record}: kvproof replay {record}", err=True)
        raise click.exceptions.Exit(1) from None
    if as_json:
        show_json([one.record() for one in replayed])
    else:
        pool = f"{num_blocks:,} blocks of {block_size} tokens"
        title = f"{len(loaded.requests):,} requests of {replaying.name_of(loaded)}, {pool}"
        show_table(replaying.COLUMNS, map(replaying.table_row, replayed), title=title)
    if churned:
        _write(replayed, churned)
    if record:
        click.echo(f"wrote what {replayed[0].implementation} was asked and answered to {record}", err=True)


def _refuse_one_file_for_two(paths: Mapping[str, Path | None]) -> None:
    names: dict[Path, str] = {}
    for name, path in paths.items():
        if path is not None and (other := names.setdefault(path.resolve(), name)) != name:
            raise click.UsageError(f"{name} would overwrite {path}, which is {other}; give another file")


def _refuse_more_than_fits(num_blocks: int) -> None:
    bookkeeping = f"{num_blocks:,} blocks, with {BLOCK_BYTES} bytes of bookkeeping each,"
    if (reason := lack_of_room(bookkeeping, num_blocks * BLOCK_BYTES, "cpu")) is not None:
        raise click.ClickException(f"--num-blocks: {reason}")


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _write(replayed: list[replaying.Replayed], churned: Path) -> None:
    try:
        source = replaying.write_churned(replayed, churned)
    except OSError as error:
        raise click.ClickException(f"{churned}: {error.strerror}") from None
    if source is None:
        raise click.ClickException(f"no sequence ever ran, so there are no block tables for {churned}")
    click.echo(f"wrote the block tables that {source} left behind to {churned}", err=True)
