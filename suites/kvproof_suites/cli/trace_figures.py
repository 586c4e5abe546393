"""What ``kvproof trace info`` shows of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof_traces import Description, Stream
    from kvproof_traces.describe import Arrivals, Lengths
    from kvproof_traces.sharing import Sharing

Row = tuple[str, str]


def record(trace: Stream, found: Description) -> dict[str, Any]:
    """The figures as one JSON object. Lengths are tokens, times seconds, shares from 0 to 1."""
    return {
        "trace": trace.path.name,
        "format": trace.format,
        "rows_read": trace.rows_read,
        "rows_kept": trace.num_kept,
        "dropped": trace.dropped,
        "notes": trace.notes,
        **asdict(found),
    }


def rows(trace: Stream, found: Description) -> Iterator[Row]:
    """The same for a person."""
    yield "format", trace.format
    yield "rows read", f"{trace.rows_read:,}"
    yield "rows kept", f"{trace.num_kept:,}"
    yield "rows dropped", f"{sum(trace.dropped.values()):,}"
    for reason, count in trace.dropped.items():
        yield f"  {reason}", f"{count:,}"
    for note in trace.notes:
        yield "note", note
    yield "prompt tokens, mean/p50/p90/p99/max", _lengths(found.prompt)
    yield "output tokens, mean/p50/p90/p99/max", _lengths(found.output)
    yield from _arrivals(found.arrivals)
    if found.num_branching:
        yield "requests that branch", f"{found.num_branching:,}"
    if found.num_aborted:
        yield "requests aborted", f"{found.num_aborted:,}"
    if found.sharing is None:
        yield "shared prefixes", "nothing is known: no hash ids"
    else:
        yield from _sharing(found.sharing)


def _lengths(found: Lengths) -> str:
    from kvproof_reports.figures import figure

    mean = figure(found.mean, 4) if found.mean < 1000 else f"{found.mean:,.0f}"
    return f"{mean}, {found.p50:,.0f}, {found.p90:,.0f}, {found.p99:,.0f}, {found.max:,}"


def _arrivals(found: Arrivals) -> Iterator[Row]:
    from kvproof_reports.figures import figure

    if found.requests_per_second is None:
        yield "arrivals", "all at once"
        return
    yield "seconds from first to last", figure(found.span_seconds, 4)
    yield "requests a second", figure(found.requests_per_second)
    yield "dispersion (1 is Poisson)", figure(found.dispersion)
    yield "distinct times", f"{found.num_distinct_times:,}"


def _sharing(found: Sharing) -> Iterator[Row]:
    from kvproof_reports.figures import percent

    yield "prompt blocks seen before", f"{percent(found.share_of_blocks)} of {found.num_blocks:,}"
    yield "prompt tokens seen before", percent(found.share_of_tokens)
    yield "prompts seen before as a whole", f"{found.num_fully_cached:,}"
    yield "distinct blocks", f"{found.num_distinct_blocks:,}"
    yield "distinct blocks used once", percent(found.share_used_once)
    yield "prompts with one first block", percent(found.share_with_first_block)
    for capacity, rate in found.hit_rates:
        yield f"hit rate, {capacity:,} tokens", percent(rate)
