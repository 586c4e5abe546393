"""Sixteen requests, 128 blocks of 16 tokens, and how many of them run at once under each way to give out memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvproof_suites.paper.allocators import make
from kvproof_suites.paper.claim import EXACT, Claim, Computed

LENGTHS = (40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110)
"""Tokens of each request at its end."""
NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 128, 16, 512
SOURCE = "worked example; counts by hand"

CLAIMS = (
    Claim("max", "maximum reserved, stops at the first misfit", 4, SOURCE, EXACT, unit="sequences"),
    Claim("oracle", "true length reserved, rounded to a power of two", 11, SOURCE, EXACT, unit="sequences"),
    Claim("paged", "paged, stops at the first misfit", 13, SOURCE, EXACT, unit="sequences"),
    Claim("blocks", "paged, blocks taken by those 13", 118, SOURCE, EXACT, unit="blocks"),
    Claim("skip", "paged, a misfit may be passed over", 14, SOURCE, EXACT, unit="sequences"),
    Claim("smallest", "paged, smallest first", 15, SOURCE, EXACT, unit="sequences"),
)


def compute() -> Computed:
    """The real allocators, asked one request after the other."""
    paged = make("paged-python", NUM_BLOCKS, BLOCK_SIZE)
    values: dict[str, float] = {
        "max": num_admitted(make("contiguous-max", NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN), LENGTHS),
        "oracle": num_admitted(make("contiguous-oracle", NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN), LENGTHS),
        "paged": num_admitted(paged, LENGTHS),
        "blocks": NUM_BLOCKS - paged.num_free_blocks(),
        "skip": num_admitted(make("paged-python", NUM_BLOCKS, BLOCK_SIZE), LENGTHS, skips=True),
        "smallest": num_admitted(make("paged-python", NUM_BLOCKS, BLOCK_SIZE), sorted(LENGTHS)),
    }
    return Computed(values)


def num_admitted(allocator: Any, lengths: Iterable[int], *, skips: bool = False) -> int:
    """Requests that run at once; without ``skips`` the first that does not fit ends it."""
    limits = hasattr(allocator, "reserves")
    num_running = 0
    for seq, length in enumerate(lengths):
        try:
            allocator.allocate(seq, range(length), **({"max_tokens": length} if limits else {}))
        except MemoryError:
            if not skips:
                break
        else:
            num_running += 1
    return num_running
