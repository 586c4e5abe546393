"""Replays a workload through an allocator as a continuously batching engine would drive it (Yu et al., Orca, OSDI
2022; Kwon et al., PagedAttention, SOSP 2023, sections 4.3 and 4.5), without a model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from kvproof_traces.batching import Batch
from kvproof_traces.entry import Entry
from kvproof_traces.observe import Observer
from kvproof_traces.pool_use import longest_alone
from kvproof_traces.request import Request, in_order
from kvproof_traces.tables import BlockTables
from kvproof_traces.token_ids import num_blocks_for

ADMISSION = "first come, first served; stops at the first misfit"


@dataclass(frozen=True)
class Replay:
    """What came of a replay. Every request is finished, aborted or rejected."""

    num_finished: int
    num_aborted: int
    num_rejected: int
    """Requests that could not fit even alone."""
    num_steps: int
    num_preemptions: int
    peak_running_seqs: int
    """Capacity: most sequences (branches count) that were live after a step's appends."""
    mean_running_seqs: float
    waste: float
    """Mean over steps of 1 - slots that hold a token / slots of the blocks in live tables; shared ones count once."""
    block_utilisation: float
    """Mean over steps of blocks in live tables / num_blocks. High with many preemptions is thrashing, not merit."""
    prefix_hit_rate: float
    """Prompt tokens found cached / prompt tokens, at first admission."""
    num_prompt_tokens: int
    num_generated_tokens: int
    num_recomputed_tokens: int
    """Tokens allocated again after a preemption."""
    num_block_copies: int
    """Copies that the allocator ordered (copy-on-write)."""
    num_leaked_blocks: int
    """Blocks free before the replay that are not after it; 0 unless the allocator loses some."""
    allocator_seconds: float
    """Inside allocate, append, fork, commit and free; reading tables for this record is not counted."""
    churned: BlockTables | None
    """Tables of the step with most sequences after two thirds of the requests had ended. When nothing ran so late,
    of the busiest step before; None when nothing ran."""
    admission: str = ADMISSION

    @property
    def block_tables(self) -> tuple[tuple[int, ...], ...]:
        return self.churned.block_tables if self.churned else ()

    @property
    def context_lens(self) -> tuple[int, ...]:
        return self.churned.context_lens if self.churned else ()


def replay(
    requests: Iterable[Request],
    allocator: Any,
    *,
    num_requests: int | None = None,
    max_num_seqs: int = 256,
    watermark: float = 0.01,
    step_ms: float | None = None,
) -> Replay:
    """Drive a fresh ``allocator`` (the contract's shape) through ``requests``, in their order.

    A step admits from the queue until the first request that does not fit, appends one token to every running
    sequence, commits, and frees what has ended. When blocks run out, the request admitted last gives its blocks back
    and goes to the head of the queue, to be recomputed. Priorities are not looked at.

    Args:
        requests: of a stream one is taken when it is admitted, so that memory does not grow with its length.
        num_requests: how many a stream gives; without it the tables that are kept are those of its busiest step.
        max_num_seqs: sequences that may run at once; a request counts with all its branches.
        watermark: share of the blocks that an admission must leave free, unless nothing runs.
        step_ms: how long a step takes, so that requests come at their ``arrival_ms``; None: all wait from the start,
            which measures capacity.

    Raises:
        ValueError: an argument out of range, or with ``step_ms`` requests that are not in order of arrival.
        RuntimeError: more steps than the work can need.
    """
    _check_arguments(max_num_seqs, watermark, step_ms)
    coming = iter(requests) if step_ms is None else in_order(requests)
    if isinstance(requests, Sized):
        num_requests, coming = len(requests), iter(list(coming))  # what is out of order touches no allocator
    free_before = allocator.num_free_blocks()
    counted = math.inf if num_requests is None else num_requests
    engine = _Engine(coming, allocator, counted, max_num_seqs, watermark, step_ms)
    while engine.step():
        # In every step the request admitted first gets a token or ends, and nothing generated is lost.
        if engine.observer.num_steps > engine.num_work:
            raise RuntimeError(
                f"the replay made {engine.observer.num_steps} steps, its work needs {engine.num_work} at most"
            )
    return engine.result(free_before - allocator.num_free_blocks())


def _check_arguments(max_num_seqs: int, watermark: float, step_ms: float | None) -> None:
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs: {max_num_seqs} is below 1")
    if not 0 <= watermark < 1:
        raise ValueError(f"watermark: {watermark} is not a share of the blocks; give 0 up to, not including, 1")
    if step_ms is not None and not step_ms > 0:
        raise ValueError(f"step_ms: {step_ms} is not a duration; give milliseconds above 0, or None")


class _Engine:
    """The policy: who is admitted, who gives way."""

    def __init__(
        self,
        requests: Iterator[Request],
        allocator: Any,
        num_requests: float,
        max_num_seqs: int,
        watermark: float,
        step_ms: float | None,
    ) -> None:
        self.allocator, self.longest_alone = allocator, longest_alone(allocator)
        self.max_num_seqs, self.num_spare, self.step_ms = max_num_seqs, int(watermark * allocator.num_blocks), step_ms
        self.batch = Batch(allocator, max_num_seqs)
        self.observer = Observer(allocator, self.batch, num_requests)
        self.waiting: deque[Entry] = deque()
        """What was preempted, the latest first, and behind it at most one that has arrived."""
        self.num_reserved_seqs = 0
        """Sequences that run, and those that will when every fork of what runs is made."""
        self.num_finished = self.num_aborted = self.num_rejected = self.num_preemptions = 0
        self.now_ms = 0.0
        self.misfit: tuple[Entry, int] | None = None
        self.num_work = 0
        """Steps that the requests seen so far can need."""
        self.entries = self._possible(requests)
        self.coming = next(self.entries, None)

    def step(self) -> bool:
        """One iteration; False when no work is left."""
        if self.coming and not self.waiting and not self.batch.entries:
            self.now_ms = max(self.now_ms, self.coming.request.arrival_ms)  # idle until then
        self._admit()
        self.batch.grow(self._give_way)
        if self.batch.entries:
            self.batch.commit()
            self.observer.step(self.num_finished + self.num_aborted + self.num_rejected)
            self._end()
        self.now_ms += self.step_ms or 0.0
        return bool(self.batch.entries or self.waiting or self.coming)

    def _possible(self, requests: Iterator[Request]) -> Iterator[Entry]:
        """Those that could run alone. What branches need together shows as they run."""
        for index, request in enumerate(requests):
            entry = Entry(index, request)
            self.num_work += 1 + entry.num_total
            num_tokens = request.num_prompt_tokens + entry.num_total
            if entry.num_branches <= self.max_num_seqs and num_tokens <= self.longest_alone:
                yield entry
            else:
                self.num_rejected += 1

    def _arrive(self) -> None:
        """The next request joins an empty queue, if its time has come: nobody behind the first is looked at."""
        if self.waiting or self.coming is None:
            return
        if self.step_ms is None or self.coming.request.arrival_ms <= self.now_ms:
            self.waiting.append(self.coming)
            self.coming = next(self.entries, None)

    def _admit(self) -> None:
        while True:
            self._arrive()
            if not self.waiting:
                return
            entry = self.waiting[0]
            if self.num_reserved_seqs + entry.num_branches > self.max_num_seqs or not self._has_room(entry):
                return
            if self.batch.admit(entry):
                self.waiting.popleft()
                self.num_reserved_seqs += entry.num_branches
            elif self.batch.entries:
                self.misfit = (entry, self.batch.calls.num_frees)
                return
            else:
                self.num_rejected += 1
                self.waiting.popleft()

    def _has_room(self, entry: Entry) -> bool:
        """Whether trying is worth it: not below the watermark, and not when nothing was freed since it last failed."""
        if not self.batch.entries:
            return True
        if self.misfit == (entry, self.batch.calls.num_frees):  # entries are compared by identity
            return False
        num_tokens = entry.request.num_prompt_tokens + entry.num_generated
        num_needed = num_blocks_for(num_tokens, self.allocator.block_size)
        return not self.num_spare or self.allocator.num_free_blocks() - num_needed >= self.num_spare

    def _give_way(self) -> None:
        victim = self.batch.last
        alone = len(self.batch.entries) == 1
        self._release(victim, comes_back=not alone)
        if alone:  # it had the pool for itself
            self.num_rejected += 1
        else:
            self.num_preemptions += 1
            self.waiting.appendleft(victim)

    def _end(self) -> None:
        for entry in self.batch.ended():
            self._release(entry)
            aborted = entry.request.abort_after is not None
            self.num_aborted += aborted
            self.num_finished += not aborted

    def _release(self, entry: Entry, comes_back: bool = False) -> None:
        self.batch.release(entry, comes_back)
        self.num_reserved_seqs -= entry.num_branches

    def result(self, num_leaked_blocks: int) -> Replay:
        batch, seen = self.batch, self.observer
        return Replay(
            num_finished=self.num_finished,
            num_aborted=self.num_aborted,
            num_rejected=self.num_rejected,
            num_steps=seen.num_steps,
            num_preemptions=self.num_preemptions,
            peak_running_seqs=seen.peak_running,
            mean_running_seqs=seen.mean(seen.sum_running),
            waste=seen.mean(seen.sum_waste),
            block_utilisation=seen.mean(seen.sum_utilisation),
            prefix_hit_rate=batch.num_cached_tokens / max(1, batch.num_prompt_tokens),
            num_prompt_tokens=batch.num_prompt_tokens,
            num_generated_tokens=batch.num_generated_tokens,
            num_recomputed_tokens=batch.num_recomputed_tokens,
            num_block_copies=batch.calls.num_block_copies,
            num_leaked_blocks=num_leaked_blocks,
            allocator_seconds=batch.calls.seconds,
            churned=seen.tables,
        )
