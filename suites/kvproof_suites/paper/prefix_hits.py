"""How often Mooncake's traces find a prefix in a cache of some size (Qin et al., FAST 2025, table 2 and figure 9)."""

from __future__ import annotations

from pathlib import Path

from kvproof_suites.paper.claim import EXACT, Chart, Claim, Computed, Value, points
from kvproof_suites.paper.trace_files import MOONCAKE, found, missing, requests
from kvproof_traces.sharing import Sharing, SharingTally

CAPACITIES = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
"""Tokens."""
PUBLISHED_CAPACITY = 3_000_000
TABLE_2, FIGURE_9 = "Qin et al. 2025 (Mooncake), table 2", "Qin et al. 2025 (Mooncake), figure 9"
PUBLISHED = {"conversation": (12_031, 12_035, 40, 41), "synthetic": (3_993, 15_325, 66, 46)}
"""Requests, mean prompt tokens, cache ratio in percent, percent of it that is left with 3 million tokens."""
READINGS = "not said whether of blocks, tokens or requests, and to whole percent; ours: blocks to tokens"
CACHE = "read off a figure; the paper does not say what its cache evicts, ours is LRU by block"
AT_3M = "of all that could be found, left by 3 million tokens"


def claims_of(name: str, num_requests: int, mean_prompt: int, ratio: int, left: int) -> tuple[Claim, ...]:
    return (
        Claim(
            f"{name} requests",
            f"{name}: requests",
            num_requests,
            TABLE_2,
            EXACT,
            "a file of another length is another trace",
        ),
        Claim(f"{name} prompt", f"{name}: mean prompt", mean_prompt, TABLE_2, points(1), "whole tokens", "tokens"),
        Claim(f"{name} ratio", f"{name}: found in a cache without end", ratio, TABLE_2, points(5), READINGS, "%"),
        Claim(f"{name} left", f"{name}: {AT_3M}", left, FIGURE_9, points(5), CACHE, "%"),
    )


CLAIMS = tuple(claim for name, figures in PUBLISHED.items() for claim in claims_of(name, *figures))


def compute(folder: Path | None = None) -> Computed:
    """One pass over each trace that lies in ``folder``."""
    values: dict[str, Value] = {}
    lines: dict[str, list[float]] = {}
    paths = found(MOONCAKE, folder)
    for name, path in paths.items():
        sharing, each = tally(path), requests(path)
        rates = dict(sharing.hit_rates)
        lines[name] = [100 * rates[capacity] for capacity in CAPACITIES]
        low, high = sorted((100 * sharing.share_of_blocks, 100 * sharing.share_of_tokens))
        values |= {
            f"{name} requests": len(each),
            f"{name} prompt": sum(request.num_prompt_tokens for request in each) / len(each),
            f"{name} ratio": (low, high),
            f"{name} left": 100 * rates[PUBLISHED_CAPACITY] / sharing.share_of_tokens,
        }
    absent = {
        claim.key: missing(MOONCAKE[name])
        for name, figures in PUBLISHED.items()
        if name not in paths
        for claim in claims_of(name, *figures)
    }
    title = "Prompt tokens found in a prefix cache, Mooncake's traces"
    chart = Chart(
        "prefix-hits", title, "tokens that the cache holds", "% of prompt tokens", CAPACITIES, lines, log_x=True
    )
    return Computed(values, [chart] if lines else [], absent)


def tally(path: Path) -> Sharing:
    tally = SharingTally(CAPACITIES)
    for request in requests(path):
        tally.add(request)
    sharing = tally.result()
    if sharing is None:
        raise ValueError(f"{path}: no request has hash_ids, so that nothing is known to be shared")
    return sharing
