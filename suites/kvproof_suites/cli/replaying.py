"""A trace through allocators: what ``kvproof replay`` shows and ``kvproof run`` records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvproof_suites.cli.terminal import note, working
from kvproof_suites.cli.trace_reading import told

if TYPE_CHECKING:
    from kvproof_impls.registry import Implementation
    from kvproof_traces import Replay, Trace

ALLOCATORS = "paged,contiguous-max,contiguous-pow2,contiguous-oracle"
SAMPLE = "native.jsonl"
WARM_UP = 4
LIMIT, BLOCK_SIZE, NUM_BLOCKS = 2_000, 16, 4_096
"""The defaults. 65,536 tokens are 8 GiB of a model with 32 layers, 8 KV heads, 128 dims and two bytes: a pool small
enough that a trace keeps it full."""


OTHER_BLOCK_SIZES = (1, 8, 32, 64, 128, 256)
"""As much memory in other blocks, which the report holds against the kernels' speed at them."""


@dataclass(frozen=True)
class Replayed:
    """One trace through one allocator."""

    trace: Trace
    implementation: str
    block_size: int
    num_blocks: int
    outcome: Replay
    caches_prefixes: bool

    def record(self) -> dict[str, Any]:
        """The fields of a ``replay`` record."""
        outcome = self.outcome
        return {
            "trace": name_of(self.trace),
            "implementation": self.implementation,
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "num_requests": len(self.trace.requests),
            "num_finished": outcome.num_finished,
            "num_rejected": outcome.num_rejected,
            "num_preemptions": outcome.num_preemptions,
            "mean_running": outcome.mean_running_seqs,
            "peak_running": outcome.peak_running_seqs,
            "waste": outcome.waste,
            "hit_rate": outcome.prefix_hit_rate if self.caches_prefixes else None,
            "allocator_seconds": outcome.allocator_seconds,
        }


def load_trace(path: Path | None, limit: int | None, **reading: Any) -> Trace:
    """The trace at ``path``, or the made-up sample; a fault of the file is told as file, line and field.

    ``reading``: the options of ``trace_reading``.
    """
    from kvproof_traces import SAMPLES, load

    with told():
        trace = load(path or SAMPLES / SAMPLE, limit=limit, **reading)
    for reason, count in trace.dropped.items():
        click.echo(f"dropped {count:,}: {reason}", err=True)
    return trace


def load_implementations(names: str) -> list[Implementation]:
    from kvproof_impls.registry import ImplementationError, load

    try:
        return [load(name.strip()) for name in names.split(",") if name.strip()]
    except ImplementationError as error:
        raise click.ClickException(str(error)) from None


def load_own(names: str) -> list[Implementation]:
    """Those of ``names`` that no worker will have to itself. The others are loaded in a process of their own, to see
    whether they can be.

    Raises:
        click.ClickException: a name that means nothing or can't be used here.
    """
    import pytest

    from kvproof_impls.registry import ImplementationError
    from kvproof_suites.checks import names_of
    from kvproof_suites.isolation.choice import pythons
    from kvproof_suites.isolation.probe import probe

    try:
        elsewhere = pythons(names_of(names), "auto", ())
        with working(f"loading {', '.join(elsewhere)}") if elsewhere else nullcontext():
            for name, python in elsewhere.items():
                probe(name, python)
    except (pytest.UsageError, ImplementationError) as error:
        raise click.ClickException(str(error)) from None
    return load_implementations(",".join(name for name in names_of(names) if name not in elsewhere))


def load_allocators(names: str) -> list[Implementation]:
    found = load_implementations(names)
    if not found:
        raise click.ClickException("--impl names nothing; give an allocator of those that `kvproof list` shows")
    for implementation in found:
        if implementation.allocator is None:
            raise click.ClickException(f"{implementation.name} provides no allocator, which is what a replay drives")
    return found


def replay_through(
    implementations: Sequence[Implementation],
    trace: Trace,
    *,
    block_size: int,
    num_blocks: int,
    max_num_seqs: int = 256,
    record: Path | None = None,
) -> Iterator[Replayed]:
    """Each allocator, fresh, through the same requests; one that fails is told by name. ``record``: where the history
    of the first one goes."""
    from kvproof_impls.recording import recorded
    from kvproof_traces import replay

    for index, implementation in enumerate(implementations):
        assert implementation.allocator is not None
        note(f"replaying {len(trace.requests):,} requests of {name_of(trace)} through {implementation.name} ...")
        # Imports and compilation happen once in a process, and are no cost of a call. What fails here fails below.
        with suppress(Exception):
            replay(trace.requests[:WARM_UP], implementation.allocator(num_blocks, block_size))
        try:
            allocator: Any = implementation.allocator(num_blocks, block_size)
            if record is not None and index == 0:
                allocator = recorded(allocator, record)
            outcome = replay(trace.requests, allocator, max_num_seqs=max_num_seqs)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise AllocatorFailed(f"{implementation.name}: {type(error).__name__}: {error}") from error
        caches = callable(getattr(allocator, "cached_prefix", None))
        yield Replayed(trace, implementation.name, block_size, num_blocks, outcome, caches)


def replay_other_block_sizes(implementation: Implementation, trace: Trace) -> Iterator[Replayed]:
    """One allocator through the same requests, in as much memory as the defaults give, cut otherwise."""
    for block_size in OTHER_BLOCK_SIZES:
        num_blocks = BLOCK_SIZE * NUM_BLOCKS // block_size
        yield from replay_through([implementation], trace, block_size=block_size, num_blocks=num_blocks)


def name_of(trace: Trace) -> str:
    """As a reader of a table should know it: the sample has a file's name that nobody gave."""
    from kvproof_traces import SAMPLES

    return "a made-up sample" if trace.path == SAMPLES / SAMPLE else trace.path.name


class AllocatorFailed(Exception):
    """An allocator raised what the contract does not allow in a replay."""


def write_churned(replayed: Sequence[Replayed], path: Path) -> str | None:
    """Block tables that the first replay left behind, to ``path``; the name of its implementation, or None."""
    from kvproof_traces import write_tables

    for one in replayed:
        if one.outcome.churned is not None:
            write_tables(path, one.outcome.churned)
            return one.implementation
    return None


COLUMNS = ("allocator", "waste", "peak seqs", "mean seqs", "preemptions", "rejected", "hit rate", "leaked", "seconds")


def table_row(one: Replayed) -> tuple[Any, ...]:
    from kvproof_reports.figures import figure, percent

    outcome = one.outcome
    return (
        one.implementation,
        percent(outcome.waste),
        outcome.peak_running_seqs,
        figure(outcome.mean_running_seqs),
        outcome.num_preemptions,
        outcome.num_rejected,
        percent(one.record()["hit_rate"]),
        outcome.num_leaked_blocks,
        figure(outcome.allocator_seconds),
    )
