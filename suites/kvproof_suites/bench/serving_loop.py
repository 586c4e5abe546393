"""The loop of a serving engine around any allocator of the contract; only what the allocator does is on the clock.

A decode step is timed as a whole, an admission and the departures of a step each as one stretch: reading the clock
twice takes some 0.1 µs, and nothing is subtracted for it. What is looked at to believe the figures is off the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from kvproof_suites.bench.serving_workload import MOST_RUNNING, NUM_DRAWN_STEPS, Tokens, Workload
from kvproof_suites.bench.step_buffers import StepBuffers, require_true_rows
from kvproof_suites.outcome import LawBroken

CHECK_EVERY = 101
"""Steps from one look at the tables to the next; prime, so that it meets every offset in a block."""

MOST_SECONDS = 90.0
"""Of one workload. Who will not make it is refused, with the time that it would take."""
GRACE_SECONDS = 5.0
"""Before that, too little has been served to foretell the end."""

Step = Callable[[Sequence[int], Tokens, Sequence[list[int]]], Any]
"""(sequences, their tokens, the same as lists of one) to the step tensors, or None where they are not included."""


class NotServed(Exception):
    """The allocator can't serve this workload, in this pool or in this time; the text says why."""


@dataclass
class Samples:
    """Nanoseconds on the clock, and what was seen beside it."""

    admit: list[int] = field(default_factory=list)
    """One admission each: ``allocate``, and ``commit`` of the prompt where there is one."""
    step: list[tuple[int, int]] = field(default_factory=list)
    """(time, rows) of a decode step: a token for each row, and its commit."""
    tensors: list[int] = field(default_factory=list)
    """Building the step tensors apart, where the step doesn't give them."""
    free: list[tuple[int, int]] = field(default_factory=list)
    """(time, sequences) of the departures after a step."""
    num_cached: int = 0
    min_free_blocks: int = 0
    step_tensors_included: bool = False


def run(pool: Any, workload: Workload, most_seconds: float = MOST_SECONDS) -> Samples:
    """Serve the whole workload; requests are numbered, and the number is the sequence id.

    Raises:
        LawBroken: a step's tensors or tables are wrong, or blocks are missing at the end: no figure is believed then.
        NotServed: the requests don't fit, or it would take longer than ``most_seconds``.
    """
    started, num_served = monotonic(), 0
    commit = getattr(pool, "commit", None)
    step, samples = decode_step(pool), Samples(min_free_blocks=pool.num_free_blocks())
    samples.step_tensors_included = hasattr(pool, "append_step")
    buffers = None if samples.step_tensors_included else StepBuffers(pool.block_size)
    running: tuple[int, ...] = ()
    num_left, lengths = np.array(workload.num_outputs), np.array([len(prompt) for prompt in workload.prompts])
    num_admitted, num_steps = 0, 0
    while running or num_admitted < len(workload.prompts):
        admitted = range(num_admitted, min(len(workload.prompts), num_admitted + MOST_RUNNING - len(running)))
        if admitted:
            admit(pool, commit, workload, admitted, samples)
            running, num_admitted = (*running, *admitted), admitted.stop
        rows = np.array(running)
        batch = decode(step, workload, num_steps, running, samples)
        lengths[rows] += 1
        num_left[rows] -= 1
        if buffers is not None:
            start = perf_counter_ns()
            batch = buffers.build(pool.block_table, running, lengths[rows])
            samples.tensors.append(perf_counter_ns() - start)
        if num_steps % CHECK_EVERY == 0 or num_left[rows].max() == 0:
            require_true_rows(pool, running, lengths[rows], batch)
        samples.min_free_blocks = min(samples.min_free_blocks, pool.num_free_blocks())
        if gone := [seq for seq in running if num_left[seq] == 0]:
            depart(pool, gone, samples)
            running = without(running, gone)
        num_steps += 1
        num_served += len(rows)
        require_pace(monotonic() - started, num_served, workload, most_seconds)
    if pool.num_free_blocks() != pool.num_blocks:
        raise LawBroken(f"not timed: {pool.num_free_blocks()} of {pool.num_blocks} blocks are free when all have left")
    return samples


def without(running: tuple[int, ...], gone: Sequence[int]) -> tuple[int, ...]:
    """The last rows fill the gaps, as in an engine with a persistent batch: whoever keeps step tensors has as many rows
    to write anew as sequences have left."""
    rows = list(running)
    for seq in gone:
        last, row = rows[-1], rows.index(seq)
        rows[row] = last
        rows.pop()
    return tuple(rows)


def require_pace(seconds: float, num_served: int, workload: Workload, most_seconds: float) -> None:
    total = seconds * sum(workload.num_outputs) / num_served
    if seconds > GRACE_SECONDS and total > most_seconds:
        raise NotServed(
            f"{len(workload.prompts):,} requests would take it some {total:,.0f} s, at most {most_seconds:.0f} s: "
            f"{1e6 * seconds / num_served:,.0f} µs a token is too slow for a pool of this size"
        )


def admit(pool: Any, commit: Any, workload: Workload, seqs: Sequence[int], samples: Samples) -> None:
    """Each admission apart. The prompt is committed at once, as if its step had run, so that the next one finds it."""
    for seq in seqs:
        prompt = workload.prompts[seq]
        start = perf_counter_ns()
        try:
            num_cached = pool.allocate(seq, prompt)
        except MemoryError as error:
            raise NotServed(f"request {seq} of the {MOST_RUNNING} that run at a time does not fit: {error}") from error
        if commit is not None:
            commit(seq)
        samples.admit.append(perf_counter_ns() - start)
        samples.num_cached += num_cached


def decode(step: Step, workload: Workload, number: int, running: tuple[int, ...], samples: Samples) -> Any:
    drawn, num_rows = number % NUM_DRAWN_STEPS, len(running)
    tokens, singles = workload.decoded[drawn, :num_rows], workload.singles[drawn][:num_rows]
    start = perf_counter_ns()
    batch = step(running, tokens, singles)
    samples.step.append((perf_counter_ns() - start, num_rows))
    return batch


def depart(pool: Any, gone: Sequence[int], samples: Samples) -> None:
    free = pool.free
    start = perf_counter_ns()
    for seq in gone:
        free(seq)
    samples.free.append((perf_counter_ns() - start, len(gone)))


def decode_step(pool: Any) -> Step:
    """A step by the widest calls that the allocator has. The loop around single calls is on the clock: some 30 ns a
    call, which whoever calls one by one pays too."""
    appended, committed = append_rows(pool), commit_rows(pool)
    if committed is None:
        return appended

    def step(seqs: Sequence[int], tokens: Tokens, singles: Sequence[list[int]]) -> Any:
        batch = appended(seqs, tokens, singles)
        committed(seqs)
        return batch

    return step


def append_rows(pool: Any) -> Step:
    if hasattr(pool, "append_step"):
        return lambda seqs, tokens, singles: pool.append_step(seqs, tokens)
    append = pool.append

    def one_by_one(seqs: Sequence[int], tokens: Tokens, singles: Sequence[list[int]]) -> None:
        for seq, single in zip(seqs, singles, strict=True):
            append(seq, single)

    return one_by_one


def commit_rows(pool: Any) -> Callable[[Sequence[int]], Any] | None:
    if hasattr(pool, "commit_step"):
        return pool.commit_step  # type: ignore[no-any-return]
    if (commit := getattr(pool, "commit", None)) is None:
        return None

    def one_by_one(seqs: Sequence[int]) -> None:
        for seq in seqs:
            commit(seq)

    return one_by_one
