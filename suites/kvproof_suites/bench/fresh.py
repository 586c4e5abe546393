"""Whether a kernel computes what it is asked, or hands out what it kept: a cache of results makes any figure look good.

The same launch runs on a query that it has never seen, and on the same query once more, in turns. Both read the same
keys, so that they may not differ beyond noise; and the answer to the last new query must be attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvproof_reference.arithmetic import Arithmetic
from kvproof_reports.statistics import FASTER, compare
from kvproof_suites.bench.clocks import Clock
from kvproof_suites.bench.problem import Contents, Problem, expect_one
from kvproof_suites.outcome import LawBroken

NUM_PAIRS = 9
NOISE = 0.5
"""A cache of results saves more than this share. Noise does not in the median of nine pairs, nor in two such sets."""


def require_no_kept_results(
    launch: Callable[[Tensor], Any], problem: Problem, contents: Contents, declared: Arithmetic, clock: Clock
) -> None:
    """Args:
        launch: of ``contents``, given a query in a tensor that is always the same.

    Raises:
        LawBroken: repeated data is faster than fresh data, or fresh data gets an answer that is not its own.
    """
    query = contents.query.clone()
    generator = torch.Generator(query.device).manual_seed(NUM_PAIRS)
    launch(query)
    for _ in range(2):
        drawn = [torch.randn(query.shape, generator=generator, device=query.device) for _ in range(NUM_PAIRS)]
        fresh, repeated, output = _in_turns(launch, query, [one.to(query.dtype) for one in drawn], clock)
        found = compare(fresh, repeated, threshold=NOISE)
        if found.answer != FASTER:
            break
    else:
        raise LawBroken(
            f"not timed: the same query once more takes {found.ratio:.2f} of the time of a new one "
            f"({found.low:.2f} to {found.high:.2f}), with the same keys: results seem to be kept"
        )
    last = (problem.point.num_tokens - 1, problem.heads.num_kv_heads - 1)
    distance = expect_one(problem, contents, query, declared, [(0, 0), last]).distance(output)
    if distance > 1:
        raise LawBroken(
            f"not timed: a new query in the same tensor gets an answer {distance:.3g} times its error bound away from "
            "attention: results seem to be kept"
        )


def _in_turns(
    launch: Callable[[Tensor], Any], query: Tensor, drawn: Sequence[Tensor], clock: Clock
) -> tuple[list[float], list[float], Any]:
    """Seconds on each of ``drawn``, on each of them once more, and the last output."""
    samples: tuple[list[float], list[float]] = ([], [])
    for one in drawn:
        for taken in samples:
            query.copy_(one)
            clock.rest()
            seconds, output = clock.time(launch, query)
            taken.append(seconds)
    return *samples, output
