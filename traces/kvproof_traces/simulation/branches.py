"""The same requests as parallel samples, or as beams with a history that a model with one parameter makes up."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvproof_traces.request import Request

MOST_REPLACED = 1000
"""Beams a step; far above what any search replaces, and each is an entry of a request's history."""


def in_parallel(requests: Iterable[Request], num_samples: int) -> Iterator[Request]:
    """Each request with ``num_samples`` samples that share its prompt."""
    if type(num_samples) is not int or num_samples < 1:
        raise ValueError(f"num_samples: {num_samples!r} is not a whole number of at least 1")
    return (replace(request, num_samples=num_samples, forks=()) for request in requests)


def in_beams(requests: Iterable[Request], width: int, replacement_rate: float, *, seed: int = 0) -> Iterator[Request]:
    """Each request as a beam search of ``width`` beams, by the Moran model.

    At each output position but the first, ``replacement_rate`` times on average, a beam drawn at random is replaced by
    a copy of another. What sharing saves follows from that rate, which is a property of model and text and not a
    constant; (width - 1) / width bounds it.

    Raises:
        ValueError: a width below 1, or a rate below 0 or above ``MOST_REPLACED``.
    """
    if type(width) is not int or width < 1:
        raise ValueError(f"width: {width!r} is not a whole number of at least 1")
    if not 0 <= replacement_rate <= MOST_REPLACED:
        raise ValueError(f"replacement_rate: {replacement_rate} is not in 0 to {MOST_REPLACED:,}; give those of a step")
    rng = random.Random(int(seed))
    return (
        replace(request, num_samples=width, forks=_moran(rng, request.num_output_tokens, width, replacement_rate))
        for request in requests
    )


def _moran(rng: random.Random, num_positions: int, width: int, rate: float) -> tuple[tuple[int, int, int], ...]:
    if width == 1:
        return ()
    forks = []
    for position in range(1, num_positions):
        for _ in range(int(rate) + (rng.random() < rate % 1)):
            parent = int(rng.random() * width)
            child = (parent + 1 + int(rng.random() * (width - 1))) % width
            forks.append((position, parent, child))
    return tuple(forks)
