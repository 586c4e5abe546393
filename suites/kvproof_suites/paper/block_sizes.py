"""How much of the pool holds tokens, by block size: the half of figure 18b that needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvproof_suites.paper.claim import Chart, Claim, Computed, at_least
from kvproof_suites.paper.composition import NUM_SLOTS
from kvproof_suites.paper.lengths import ALPACA, SHAREGPT
from kvproof_suites.paper.lengths import requests as generated
from kvproof_suites.paper.trace_files import AZURE, MOONCAKE, found
from kvproof_suites.paper.trace_files import requests as read
from kvproof_traces import Request
from kvproof_traces.simulation import Pool, Scheduler, simulate

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_REQUESTS = 10_000
AZURE_SLOTS, MOONCAKE_SLOTS = 131_072, 1_048_576
SOURCE = "Kwon et al. 2023, section 7.2: 16 and 32 suit Alpaca and larger ones are much worse, 16 to 128 suit ShareGPT"
HALF = "theirs is a latency, of which waste is one half; so the direction is asserted, and no figure"

CLAIMS = (
    Claim(
        "worse", "from 16 to 128, Alpaca-like loses more than ShareGPT-like", None, SOURCE, at_least(0), HALF, "points"
    ),
)


def compute(folder: Path | None = None) -> Computed:
    """Generated lengths always; Azure's and Mooncake's where their files lie in ``folder``, nothing found cached."""
    sharegpt, alpaca = (by_size(generated(lengths, NUM_REQUESTS), NUM_SLOTS) for lengths in (SHAREGPT, ALPACA))
    lines = {f"ShareGPT-like, {NUM_SLOTS:,} slots": sharegpt, f"Alpaca-like, {NUM_SLOTS:,} slots": alpaca}
    for name, path in found(AZURE, folder).items():
        lines[f"{name}, {AZURE_SLOTS:,} slots"] = by_size(read(path), AZURE_SLOTS)
    for name, path in found(MOONCAKE, folder).items():
        lines[f"Mooncake {name}, {MOONCAKE_SLOTS:,} slots"] = by_size(read(path), MOONCAKE_SLOTS)
    title = "Slots that hold a token, paged, on a saturated server"
    chart = Chart("block-sizes", title, "block size, tokens", "% of the pool", BLOCK_SIZES, lines, log_x=True)
    return Computed({"worse": lost(alpaca) - lost(sharegpt)}, [chart])


def by_size(each: Sequence[Request], num_slots: int) -> list[float]:
    """Percent of the pool at each of ``BLOCK_SIZES``."""
    scheduler = Scheduler(max_num_seqs=num_slots)
    runs = (simulate(each, Pool(num_slots, block_size=size), scheduler, saturated=True) for size in BLOCK_SIZES)
    return [100 * run.token_share for run in runs]


def lost(shares: Sequence[float]) -> float:
    """Points between blocks of 16 and of 128 tokens."""
    return shares[BLOCK_SIZES.index(16)] - shares[BLOCK_SIZES.index(128)]
