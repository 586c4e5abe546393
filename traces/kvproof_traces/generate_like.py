"""Made-up traffic that is like published traffic: lengths, bursts and shared prefixes by ``PROFILES``, and a seed.

What the table gives comes out; what it doesn't is as simple as can be: prompts, outputs and arrivals are independent,
and a prompt continues any recent one. Hit rates of small caches depend on which, and are not those of the real trace.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from itertools import count

from kvproof_traces.distributions import geometric, rounded
from kvproof_traces.profiles import PROFILES, Profile
from kvproof_traces.request import Request

NUM_RECENT = 2048
"""Earlier prompts that one may continue."""
SLOWEST, FASTEST = 1e-6, 1e6
"""Requests a second. The arrivals of a second are drawn and sorted at once."""


def generate_like(
    name: str, num_requests: int, *, seed: int = 0, requests_per_second: float | None = None
) -> Iterator[Request]:
    """``num_requests`` of ``PROFILES[name]``, one by one in order of arrival, in constant memory.

    The same for the same seed on every Python; more requests begin with the same ones. ``requests_per_second``: another
    rate, with the profile's dispersion.

    Raises:
        ValueError: an unknown name, or a number out of range.
    """
    if name not in PROFILES:
        raise ValueError(f"name: unknown traffic {name!r}; known are {', '.join(PROFILES)}")
    profile = PROFILES[name]
    rate = profile.requests_per_second if requests_per_second is None else requests_per_second
    if num_requests < 1:
        raise ValueError(f"num_requests: {num_requests} is below 1")
    if not SLOWEST <= rate <= FASTEST:
        raise ValueError(f"--rate, requests_per_second: {rate:g} is not in {SLOWEST:g} to {FASTEST:g}")
    return _requests(profile, num_requests, rate, int(seed))


def _requests(profile: Profile, num_requests: int, rate: float, seed: int) -> Iterator[Request]:
    # A generator for each trait, so that changing one leaves the others as they are.
    lengths, sharing, beams = (random.Random(4 * seed + trait) for trait in (0, 1, 2))
    prefixes = Prefixes(profile, sharing) if profile.shared is not None else None
    for index, arrival_ms in zip(range(num_requests), arrivals(rate, profile.dispersion, 4 * seed + 3), strict=False):
        draws = [lengths.random() for _ in range(4)]
        num_prompt_tokens = rounded(profile.prompt.quantile(draws[0]), draws[1])
        num_output_tokens = rounded(profile.output.quantile(draws[2]), draws[3])
        yield Request(
            request_id=f"r{index}",
            arrival_ms=arrival_ms,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            hash_ids=prefixes.of(num_prompt_tokens) if prefixes else (),
            hash_block_size=profile.hash_block_size,
            num_samples=profile.beam_width,
            forks=_replacements(profile, num_output_tokens, beams),
        )


def arrivals(rate: float, dispersion: float, seed: int) -> Iterator[float]:
    """Times in ms from the start of the first one's second, ``rate`` a second, ``dispersion`` as counted by seconds.

    Batches come as a Poisson process, their sizes are geometric with mean m, and a batch lies in one second, anywhere
    in it. The count of a second then has variance ÷ mean = E[N²]/E[N] = 2m - 1, so that m = (dispersion + 1)/2.
    """
    rng, mean_size = random.Random(seed), (max(dispersion, 1.0) + 1) / 2
    next_batch, first = -math.log(1 - rng.random()) / (rate / mean_size), None
    while True:
        second = math.floor(next_batch)
        times: list[float] = []
        while next_batch < second + 1:
            times += [second + rng.random() for _ in range(geometric(mean_size, rng.random()))]
            next_batch -= math.log(1 - rng.random()) / (rate / mean_size)
        first = math.floor(min(times)) if first is None else first
        for seconds in sorted(times):
            # Rounded: the last bits of a logarithm differ between C libraries.
            yield round((seconds - first) * 1000, 3)


class Prefixes:
    """Hash ids of prompts of which a given share is the beginning of an earlier one.

    Each prompt is to share a fraction Vᵃ of its blocks, V uniform and a = (1 - s)/s, whose mean is s. What could not be
    shared, because no recent prompt is that long, is made up for by the next: the share of all blocks tends to s.
    """

    def __init__(self, profile: Profile, rng: random.Random) -> None:
        assert profile.shared is not None
        self.size, self.exponent, self.rng = profile.hash_block_size, 1 / profile.shared - 1, rng
        self.has_common_block = profile.has_common_block
        self.fresh = count()
        self.recent: deque[tuple[int, ...]] = deque(maxlen=NUM_RECENT)
        """Whole blocks of recent prompts."""
        self.owed = 0.0

    def of(self, num_tokens: int) -> tuple[int, ...]:
        """The ids of the next prompt. Its last block, where it is partial, is never shared."""
        num_blocks, num_whole = -(-num_tokens // self.size), num_tokens // self.size
        self.owed += num_blocks * self.rng.random() ** self.exponent
        least = min(num_whole, 1) if self.has_common_block else 0
        shared = self._beginning(max(least, min(num_whole, int(self.owed))))
        self.owed -= len(shared)
        ids = shared + tuple(next(self.fresh) for _ in range(num_blocks - len(shared)))
        if num_whole:
            self.recent.append(ids[:num_whole])
        return ids

    def _beginning(self, num_blocks: int) -> tuple[int, ...]:
        """Of a recent prompt with as many blocks; else as much as the longest has."""
        if not num_blocks or not self.recent:
            return ()
        start, longest = int(self.rng.random() * len(self.recent)), self.recent[0]
        for offset in range(len(self.recent)):
            candidate = self.recent[start - offset]
            if len(candidate) >= num_blocks:
                return candidate[:num_blocks]
            longest = max(longest, candidate, key=len)
        return longest


def _replacements(profile: Profile, num_output_tokens: int, rng: random.Random) -> tuple[tuple[int, int, int], ...]:
    """In each step one beam is replaced by a copy of another, with the profile's probability (Moran, 1958)."""
    forks = []
    for position in range(num_output_tokens if profile.beam_width > 1 else 0):
        if rng.random() < profile.replacements_per_step:
            parent = int(rng.random() * profile.beam_width)
            child = (parent + 1 + int(rng.random() * (profile.beam_width - 1))) % profile.beam_width
            forks.append((position, parent, child))
    return tuple(forks)
