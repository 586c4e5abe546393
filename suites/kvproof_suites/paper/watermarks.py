"""Utilisation alone rewards thrashing: the same server with more and more blocks kept free at admission."""

from __future__ import annotations

from itertools import pairwise

from kvproof_suites.paper.claim import Chart, Claim, Computed, at_least
from kvproof_suites.paper.composition import NUM_SLOTS
from kvproof_suites.paper.lengths import MAX_MODEL_LEN, SHAREGPT, requests
from kvproof_traces.simulation import Pool, Scheduler, simulate

WATERMARKS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
NUM_REQUESTS = 10_000
SOURCE = "what a watermark is for"

CLAIMS = (
    Claim("use", "slots in use fall from each watermark to the next", None, SOURCE, at_least(0), unit="points"),
    Claim("preemptions", "preemptions in 100 requests fall from each to the next", None, SOURCE, at_least(0)),
)


def compute() -> Computed:
    """Paged, blocks of 16, ShareGPT-like, saturated, first come, first served, recomputed after a preemption."""
    each, pool = requests(SHAREGPT, NUM_REQUESTS), Pool(NUM_SLOTS, max_model_len=MAX_MODEL_LEN)
    runs = [simulate(each, pool, Scheduler("stop", NUM_SLOTS, mark), saturated=True) for mark in WATERMARKS]
    use = [100 * run.token_share for run in runs]
    preemptions = [100 * run.num_preemptions / run.num_requests for run in runs]
    chart = Chart(
        "watermarks",
        "What the last points of utilisation cost, ShareGPT-like",
        "% of blocks kept free",
        "",
        [100 * mark for mark in WATERMARKS],
        {"slots in use, %": use, "preemptions in 100 requests": preemptions},
    )
    return Computed({"use": least_fall(use), "preemptions": least_fall(preemptions)}, [chart])


def least_fall(values: list[float]) -> float:
    return min(before - after for before, after in pairwise(values))
