"""A seeded workload: log-normal prompts, geometric outputs, Poisson arrivals, shared prefixes, branches and aborts."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import count

from kvproof_traces.request import Request


@dataclass(frozen=True)
class Workload:
    """What a generated workload is like. Shares are probabilities of a request, independent of each other.

    Raises:
        ValueError: a number out of range, named.
    """

    num_requests: int = 256
    mean_prompt_tokens: float = 400.0
    """Of a request's own prompt, before it is cut at the maximum and without a shared prefix."""
    prompt_sigma: float = 1.0
    """Standard deviation of the logarithm."""
    mean_output_tokens: float = 100.0
    max_prompt_tokens: int = 8192
    max_output_tokens: int = 1024
    requests_per_second: float = 5.0
    prefix_share: float = 0.3
    """Requests that start with one of ``num_prefixes`` common prefixes, all equally likely."""
    num_prefixes: int = 4
    prefix_tokens: int = 256
    """Rounded down to whole hash blocks."""
    hash_block_size: int = 16
    sample_share: float = 0.1
    """Requests with 2 to 4 parallel samples."""
    fork_share: float = 0.05
    """Requests in which a branch later becomes a copy of another."""
    abort_share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("prefix_share", "sample_share", "fork_share", "abort_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Workload.{name}: {getattr(self, name)} is not a share from 0 to 1")
        for name in ("num_requests", "max_prompt_tokens", "max_output_tokens", "num_prefixes", "hash_block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Workload.{name}: {getattr(self, name)} is below 1")
        for name in ("mean_prompt_tokens", "mean_output_tokens", "requests_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Workload.{name}: {getattr(self, name)} is not above 0")
        if self.prefix_tokens < 0 or self.prompt_sigma < 0:
            raise ValueError(f"Workload: prefix_tokens {self.prefix_tokens}, prompt_sigma {self.prompt_sigma}: below 0")


def generate(workload: Workload | None = None, *, seed: int = 0) -> tuple[Request, ...]:
    """The requests of ``workload`` (None: the default one), the same for the same seed on every Python.

    Only ``random()`` of an integer-seeded generator is drawn from, which Python keeps stable; the distributions are
    made here. Every request draws equally often, so that changing a share leaves the other traits as they are.
    """
    workload = workload or Workload()
    rng = random.Random(int(seed))
    fresh_id = count()
    num_prefix_blocks = workload.prefix_tokens // workload.hash_block_size
    prefixes = [tuple(next(fresh_id) for _ in range(num_prefix_blocks)) for _ in range(workload.num_prefixes)]
    requests, seconds = [], 0.0
    for index in range(workload.num_requests):
        draws = [rng.random() for _ in range(12)]
        seconds += -math.log(1 - draws[0]) / workload.requests_per_second if index else 0.0
        prefix = prefixes[int(draws[1] * len(prefixes))] if draws[2] < workload.prefix_share else ()
        num_own_tokens = _log_normal(draws[3], draws[4], workload)
        num_own_blocks = -(-num_own_tokens // workload.hash_block_size)
        num_outputs = _geometric(draws[5], workload)
        num_samples = 2 + int(draws[7] * 3) if draws[6] < workload.sample_share else 1
        request = Request(
            request_id=f"r{index}",
            # Rounded: the last bits of a logarithm differ between C libraries.
            arrival_ms=round(seconds * 1000, 3),
            num_prompt_tokens=len(prefix) * workload.hash_block_size + num_own_tokens,
            num_output_tokens=num_outputs,
            hash_ids=prefix + tuple(next(fresh_id) for _ in range(num_own_blocks)),
            hash_block_size=workload.hash_block_size,
            num_samples=num_samples,
            forks=_forks(draws[9], num_outputs, num_samples) if draws[8] < workload.fork_share else (),
            abort_after=int(draws[11] * num_outputs) if draws[10] < workload.abort_share else None,
        )
        requests.append(request)
    return tuple(requests)


def _log_normal(first: float, second: float, workload: Workload) -> int:
    """By Box and Muller, with the location that gives the mean; at least 1, at most the maximum."""
    normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
    location = math.log(workload.mean_prompt_tokens) - workload.prompt_sigma**2 / 2
    return min(workload.max_prompt_tokens, max(1, round(math.exp(location + workload.prompt_sigma * normal))))


def _geometric(draw: float, workload: Workload) -> int:
    """Trials up to the first success, by inversion; at most the maximum."""
    if workload.mean_output_tokens <= 1:
        return 1
    trials = 1 + int(math.log(1 - draw) / math.log(1 - 1 / workload.mean_output_tokens))
    return min(workload.max_output_tokens, trials)


def _forks(draw: float, num_output_tokens: int, num_samples: int) -> tuple[tuple[int, int, int], ...]:
    """Branch 0 is copied: over the last sample where there are several, else to a new branch."""
    return ((int(draw * num_output_tokens), 0, max(1, num_samples - 1)),)
