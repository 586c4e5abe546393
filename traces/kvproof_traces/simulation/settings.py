"""What a simulation is told about the pool and the scheduler, checked when it is said."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

POLICIES = {
    "paged": "blocks on demand, shared where the content is (Kwon et al., PagedAttention, SOSP 2023)",
    "contiguous-max": "max_model_len slots for every sequence: Orca (Max) in that paper, section 6.1",
    "contiguous-pow2": "prompt + the output rounded up to a power of two: Orca (Pow2)",
    "contiguous-oracle": "prompt + the output as it will be: Orca (Oracle)",
}
"""How sequences get room. The contiguous ones take it from a buddy allocator."""

ADMISSIONS = {
    "stop": "first come, first served; stops at the first misfit",
    "skip": "in order of arrival, whoever fits",
    "smallest": "who needs least first",
}
"""Who is admitted. The last two choose among ``Scheduler.lookahead`` waiting requests."""

PREEMPTIONS = {
    "recompute": "the request admitted last gives its blocks back and is computed again",
    "swap": "its blocks go to the host and come back; recomputed when the host is full",
}


@dataclass(frozen=True)
class Pool:
    """The memory.

    Raises:
        ValueError: a field out of range or one that does not go with another, named.
    """

    num_slots: int
    """Tokens there is room for. Paged, it is used in whole blocks."""
    policy: str = "paged"
    """One of ``POLICIES``."""
    block_size: int = 16
    """Tokens a block; paged only."""
    max_model_len: int | None = None
    """Longest prompt and output together, in tokens; longer requests are rejected. ``contiguous-max`` needs it."""
    prefix_cache: bool = False
    """Complete blocks are found again by ``hash_ids``, until they are the least recently used of no owner."""
    window: int | None = None
    """Sliding window in tokens: blocks that left it are given back at the end of the step."""
    num_host_blocks: int = 0
    """Room for swapped blocks."""
    kv_bytes_per_token: int = 0
    """For ``Simulation.swapped_bytes``."""

    def __post_init__(self) -> None:
        _one_of("Pool.policy", self.policy, POLICIES)
        for name in ("num_slots", "block_size"):
            _whole(f"Pool.{name}", getattr(self, name), 1)
        for name in ("num_host_blocks", "kv_bytes_per_token"):
            _whole(f"Pool.{name}", getattr(self, name), 0)
        for name in ("max_model_len", "window"):
            if getattr(self, name) is not None:
                _whole(f"Pool.{name}", getattr(self, name), 1)
        if self.block_size > self.num_slots:
            raise ValueError(f"Pool.num_slots: {self.num_slots} is not even one block of {self.block_size}")
        if self.policy == "contiguous-max" and self.max_model_len is None:
            raise ValueError("Pool.max_model_len: missing; contiguous-max reserves that many slots a sequence")
        self._refuse_combinations()

    def _refuse_combinations(self) -> None:
        if not self.is_paged:
            for name in ("prefix_cache", "window", "num_host_blocks"):
                if getattr(self, name):
                    raise ValueError(f"Pool.{name}: needs blocks, which {self.policy} has not; use policy='paged'")
        if self.window is not None and self.prefix_cache:
            raise ValueError("Pool.window: is not simulated together with prefix_cache; leave one out")

    @property
    def is_paged(self) -> bool:
        return self.policy == "paged"

    @property
    def num_blocks(self) -> int:
        return self.num_slots // self.block_size


@dataclass(frozen=True)
class Scheduler:
    """Who runs.

    Raises:
        ValueError: a field out of range, named.
    """

    admission: str = "stop"
    """One of ``ADMISSIONS``."""
    max_num_seqs: int = 256
    """Sequences that may run at once; a request counts with all its branches."""
    watermark: float = 0.01
    """Share of the blocks that an admission must leave free, unless nothing runs. Contiguous: not looked at."""
    preemption: str = "recompute"
    """One of ``PREEMPTIONS``."""
    token_budget: int | None = None
    """Chunked prefill: tokens a step computes at most, one for each decoding sequence first. Blocks are taken chunk by
    chunk, but an admission wants those of the whole prompt to be free. None: whole prompts."""
    lookahead: int = 32
    """Waiting requests that are looked at by the admissions that choose."""

    def __post_init__(self) -> None:
        _one_of("Scheduler.admission", self.admission, ADMISSIONS)
        _one_of("Scheduler.preemption", self.preemption, PREEMPTIONS)
        for name in ("max_num_seqs", "lookahead"):
            _whole(f"Scheduler.{name}", getattr(self, name), 1)
        if not 0 <= self.watermark < 1:
            raise ValueError(f"Scheduler.watermark: {self.watermark} is not a share; give 0 up to, not including, 1")
        if self.token_budget is not None:
            _whole("Scheduler.token_budget", self.token_budget, 1)
            if self.token_budget < self.max_num_seqs:
                raise ValueError(
                    f"Scheduler.token_budget: {self.token_budget} tokens a step are fewer than max_num_seqs "
                    f"({self.max_num_seqs}), which may all want one; raise it or lower max_num_seqs"
                )


def _one_of(name: str, value: Any, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}: unknown {value!r}; known are {', '.join(known)}")


def _whole(name: str, value: Any, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise ValueError(f"{name}: {value!r} is not a whole number of at least {at_least}")
