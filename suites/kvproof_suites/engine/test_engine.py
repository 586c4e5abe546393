"""D2: allocator and kernel together; at every step each sequence attends to its own history."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.engine.history import Engine
from kvproof_suites.outcome import refuse
from kvproof_suites.under_test import KernelUnderTest, MakeAllocator

pytestmark = pytest.mark.law("D2")

BLOCK_SIZES = (1, 3, 16)
Pair = tuple[MakeAllocator, KernelUnderTest]
Keep = Callable[[float], None]


def start(engine: Pair, num_blocks: int, block_size: int, seed: int, keep_ratio: Keep, *capabilities: str) -> Engine:
    make_allocator, under_test = engine
    allocator = make_allocator(num_blocks, block_size)
    window = getattr(allocator, "window", None)  # what lies before it has no block, and no query may ask for it
    if window is not None and "window" not in under_test.kernel.features:
        refuse("the allocator has a window, and the kernel none")
    spec = AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=64, block_size=block_size, window=window)
    if (reason := under_test.kernel.unsupported(spec)) is not None:
        refuse(reason)
    for capability in capabilities:
        if not hasattr(allocator, capability):
            refuse(f"the allocator has no {capability}")
    return Engine(allocator, under_test, spec, seed, keep_ratio)


def tokens(count: int, first: int = 1) -> list[int]:
    return list(range(first, first + count))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_decode_crosses_the_boundary_after_a_prompt_that_fills_its_block(
    engine: Pair, block_size: int, seed: int, report_ratio: Keep
) -> None:
    running = start(engine, 16, block_size, seed, report_ratio)
    running.admit("a", tokens(2 * block_size))
    running.run_to_end(chunk=2 * block_size)
    for step in range(block_size + 1):
        running.append("a", [100 + step])
        running.step({"a": 1})


@pytest.mark.parametrize("chunk", [1, 16, 17])
def test_prefill_in_chunks_sees_what_came_before(engine: Pair, chunk: int, seed: int, report_ratio: Keep) -> None:
    running = start(engine, 16, 16, seed, report_ratio)
    running.admit("a", tokens(33))
    running.admit("b", tokens(20, first=50))
    running.run_to_end(chunk)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("past_the_boundary", [-1, 0, 1])
def test_branches_of_a_fork_diverge_without_touching_one_another(
    engine: Pair, block_size: int, past_the_boundary: int, seed: int, report_ratio: Keep
) -> None:
    running = start(engine, 16, block_size, seed, report_ratio, "fork")
    running.admit("parent", tokens(2 * block_size + past_the_boundary))
    running.run_to_end(chunk=64)
    running.fork("parent", "child")
    for step in range(2):
        running.append("child", [200 + step])
        running.append("parent", [300 + step])
        running.step({"parent": 1, "child": 1})
    running.free("parent")
    running.append("child", [400])
    running.step({"child": 1})


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_blocks_freed_in_a_step_serve_another_sequence_in_the_same_step(
    engine: Pair, block_size: int, seed: int, report_ratio: Keep
) -> None:
    running = start(engine, 4, block_size, seed, report_ratio)
    running.admit("a", tokens(block_size))
    running.run_to_end(chunk=64)
    running.free("a")
    running.admit("b", tokens(block_size, first=70))
    running.run_to_end(chunk=64)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_prefix_that_is_found_cached_reads_as_if_computed(
    engine: Pair, block_size: int, seed: int, report_ratio: Keep
) -> None:
    running = start(engine, 16, block_size, seed, report_ratio, "commit", "cached_prefix")
    running.admit("a", tokens(2 * block_size + 1))
    running.run_to_end(chunk=64)
    running.free("a")
    running.admit("again", tokens(2 * block_size + 2))
    running.run_to_end(chunk=64)


@pytest.mark.parametrize("block_size", [3, 16])
def test_a_random_program_of_requests(engine: Pair, block_size: int, seed: int, report_ratio: Keep) -> None:
    running = start(engine, 12, block_size, seed, report_ratio)
    draw, admitted = random.Random(seed), 0
    for _ in range(12):
        if len(running.histories) < 3 and running.allocator.can_allocate(block_size + 2):
            admitted += 1
            running.admit(admitted, [draw.randrange(9) for _ in range(draw.choice([1, block_size, block_size + 2]))])
            running.run_to_end(chunk=draw.choice([1, block_size, 64]))
        elif running.histories and draw.random() < 0.3:
            running.free(draw.choice(list(running.histories)))
        decode(running, draw)


def decode(running: Engine, draw: random.Random) -> None:
    """One token for every sequence that gets a slot; who finds the pool exhausted finishes."""
    for seq in list(running.histories):
        try:
            running.append(seq, [draw.randrange(9)])
        except MemoryError:
            running.free(seq)
    if running.histories:
        running.step(dict.fromkeys(running.histories, 1))
