"""The public call: ``simulate``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from kvproof_traces.request import Request
from kvproof_traces.simulation.engine import Engine
from kvproof_traces.simulation.result import Simulation
from kvproof_traces.simulation.settings import Pool, Scheduler
from kvproof_traces.simulation.step_time import StepTime


def simulate(
    requests: Iterable[Request],
    pool: Pool,
    scheduler: Scheduler | None = None,
    step_time: StepTime | float | None = None,
    *,
    key_of: Callable[[Request], Hashable] | None = None,
    on_progress: Callable[[int], None] | None = None,
    saturated: bool = False,
) -> Simulation:
    """Serve ``requests``, which are taken one by one and not kept, with continuous batching.

    A step admits waiting requests by ``scheduler.admission``, computes prompts (whole, or as far as the token budget
    goes), appends one token to every sequence whose prompt is complete, and frees what has ended. When blocks run out,
    the request admitted last gives way and goes to the head of the queue. A step happens for a request whole or not
    at all. Steps in which nothing but growth happens are counted together.

    Args:
        scheduler: None: the default one.
        step_time: None: all requests wait from the start, which measures capacity; a number: milliseconds of every
            step; a ``Roofline`` or another function of (tokens computed, tokens of context, tokens swapped).
        key_of: what else than tokens must be equal for a prefix to be shared, such as an adapter; None: nothing.
        on_progress: called now and then with the number of requests that have ended.
        saturated: stop when nobody waits any more, with what runs unfinished. A server that empties is not typical:
            the longest requests stay to the end, in a pool that nobody else wants.

    Raises:
        ValueError: an argument out of range, requests out of order of arrival where time counts, a hash block size
            that the block size does not go with, or branches under a window.
    """
    if isinstance(step_time, (int, float)):
        if not step_time > 0:
            raise ValueError(f"step_time: {step_time} ms is not a duration; give more than 0, or None")
        step_ms = float(step_time)
        clock: StepTime | None = lambda new, context, swapped: step_ms  # noqa: E731
    else:
        clock = step_time
    engine = Engine(requests, pool, scheduler or Scheduler(), clock, key_of or _no_key)
    return engine.run(on_progress, saturated=saturated).result(pool, engine.clock)


def _no_key(request: Request) -> Hashable:
    return None
