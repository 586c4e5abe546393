"""What fills the pool, and how many sequences run: Orca's three ways to reserve against paging (figures 2 and 13)."""

from __future__ import annotations

from kvproof_suites.paper.claim import Chart, Claim, Computed, Tolerance, Value, percent, points
from kvproof_suites.paper.lengths import ALPACA, MAX_MODEL_LEN, SHAREGPT, Lengths, requests
from kvproof_traces.simulation import Pool, Scheduler, Simulation, simulate

NUM_SLOTS = 15_700
"""Of the 13B setup, table 1."""
NUM_REQUESTS = 10_000
ORCA = {"max": "Orca (Max)", "pow2": "Orca (Pow2)", "oracle": "Orca (Oracle)"}
FIGURE_2, FIGURE_13 = "Kwon et al. 2023, figure 2", "Kwon et al. 2023, figure 13"

PUBLISHED_SHARES = {
    "max": (20.4, 13.3, 57.3, 8.9),
    "pow2": (26.8, 17.9, 13.6, 41.6),
    "oracle": (38.2, 25.2, 0.0, 36.6),
}
"""Tokens, reserved, internal, external and others, in percent of the pool."""
PARTS = ("tokens", "reserved, not written yet", "reserved, never written", "fragmented, rounded and free")
NEAR: dict[str, Tolerance] = {"max": points(3), "pow2": points(5), "oracle": points(3)}
REMAINDER = "it is what the three others leave of 100, with the errors of all of them"
PUBLISHED_SEQS = {
    "ShareGPT": {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42},
    "Alpaca": {"max": 7.00, "pow2": 43.24, "oracle": 72.75, "paged": 132.44},
}
LENGTHS: dict[str, Lengths] = {"ShareGPT": SHAREGPT, "Alpaca": ALPACA}
UNSATURATED = "the paper's requests come at 2 and 30 a second, ours all wait from the start"

SHARES = tuple(
    Claim(
        f"{policy} {part}",
        f"{ORCA[policy]}: {part}",
        published,
        FIGURE_2,
        NEAR[policy] if part != PARTS[-1] else None,
        "" if part != PARTS[-1] else REMAINDER,
        "%",
    )
    for policy, shares in PUBLISHED_SHARES.items()
    for part, published in zip(PARTS, shares, strict=True)
)
PAGED = Claim(
    "paged tokens",
    "vLLM: tokens",
    96.3,
    FIGURE_2,
    None,
    "how near to full a server runs depends on its load and watermark, which are not published",
    "%",
)
SEQS = tuple(
    Claim(
        f"{data} {policy}",
        f"{data}, {ORCA.get(policy, 'vLLM')}: mean sequences that run",
        published,
        FIGURE_13,
        percent(5) if policy in ORCA else None,
        "" if policy in ORCA else UNSATURATED,
        "sequences",
    )
    for data, policies in PUBLISHED_SEQS.items()
    for policy, published in policies.items()
)
CLAIMS = (*SHARES, PAGED, *SEQS)


def compute() -> Computed:
    """A saturated server, first come, first served."""
    outcomes = {(data, policy): serve(data, policy) for data in LENGTHS for policy in (*ORCA, "paged")}
    values: dict[str, Value] = {f"{data} {policy}": run.mean_running_seqs for (data, policy), run in outcomes.items()}
    for policy in ORCA:
        values |= {
            f"{policy} {part}": share for part, share in zip(PARTS, shares(outcomes["ShareGPT", policy]), strict=True)
        }
    values["paged tokens"] = shares(outcomes["ShareGPT", "paged"])[0]
    return Computed(values, [_chart(outcomes)])


def serve(data: str, policy: str) -> Simulation:
    pool = Pool(NUM_SLOTS, policy if policy == "paged" else f"contiguous-{policy}", max_model_len=MAX_MODEL_LEN)
    scheduler = Scheduler(max_num_seqs=NUM_SLOTS)
    return simulate(requests(LENGTHS[data], NUM_REQUESTS), pool, scheduler, saturated=True)


def shares(run: Simulation) -> tuple[float, float, float, float]:
    """In percent, in the order of ``PARTS``."""
    return (100 * run.token_share, 100 * run.reserved_share, 100 * run.internal_share, 100 * run.external_share)


def _chart(outcomes: dict[tuple[str, str], Simulation]) -> Chart:
    bars = [(f"{name}<br>{who}", policy) for policy, name in ORCA.items() for who in ("paper", "ours")]
    columns = [
        PUBLISHED_SHARES[policy] if label.endswith("paper") else shares(outcomes["ShareGPT", policy])
        for label, policy in bars
    ]
    paged = shares(outcomes["ShareGPT", "paged"])
    lines = {part: [*(column[i] for column in columns), paged[i]] for i, part in enumerate(PARTS)}
    return Chart(
        "composition",
        "What fills the pool of a saturated server, ShareGPT-like",
        "",
        "% of the pool",
        [*(label for label, _ in bars), "paged<br>ours"],
        lines,
    )
