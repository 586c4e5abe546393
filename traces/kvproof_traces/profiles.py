"""Published traffic as numbers: the table that ``generate_like`` draws from, with the source of each row.

A length is given by its mean and percentiles where they are known, else by mean and coefficient of variation. Where
nothing is published the row says "assumed": the figure is ours and stands for nothing but itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvproof_traces.distributions import Length, LogNormal, Percentiles


@dataclass(frozen=True)
class Profile:
    """One kind of traffic."""

    summary: str
    source: str
    prompt: Length
    output: Length
    requests_per_second: float
    dispersion: float = 1.0
    """Variance ÷ mean of arrivals in bins of 1 s: 1 is Poisson."""
    shared: float | None = None
    """Share of the prompts' blocks that an earlier request had; None: no hash ids."""
    has_common_block: bool = False
    """The first block is the same in all requests: a system prompt."""
    hash_block_size: int = 512
    beam_width: int = 1
    replacements_per_step: float = 0.0
    """Beams that are replaced by copies of others, mean a step (beam search only)."""


_AZURE = "measured on Azure's trace of 2023 (Patel et al., ISCA 2024)"
_MOONCAKE = "measured on Mooncake's trace (Qin et al., FAST 2025)"
_PAGED = "means: Kwon et al., SOSP 2023, Fig. 11"
_CODE_PROMPT = Percentiles(mean=2047.85, min=3, p50=1469, p90=5188, p99=7436, max=7437)
_CODE_OUTPUT = Percentiles(mean=27.88, min=6, p50=13, p90=55, p99=251, max=1899)
_ALPACA_PROMPT = LogNormal(mean=19.31, variation=0.8, max=1024)
_ALPACA_OUTPUT = LogNormal(mean=58.45, variation=0.9, max=1024)

PROFILES: Mapping[str, Profile] = {
    "sharegpt": Profile(
        "chat, as serving papers replay it",
        f"{_PAGED}; rate: Fig. 13a; spread assumed; at most 2,048 tokens in all, as OPT has",
        LogNormal(mean=161.31, variation=1.6, max=1024),
        LogNormal(mean=337.99, variation=1.0, max=1024),
        requests_per_second=2.0,
    ),
    "alpaca": Profile(
        "instructions, short",
        f"{_PAGED}; rate: Fig. 13b; spread assumed",
        _ALPACA_PROMPT,
        _ALPACA_OUTPUT,
        requests_per_second=30.0,
    ),
    "azure-code": Profile(
        "code completion, bursts of long prompts and short answers",
        _AZURE,
        _CODE_PROMPT,
        _CODE_OUTPUT,
        requests_per_second=2.567,
        dispersion=13.18,
    ),
    "azure-conv": Profile(
        "chat service",
        _AZURE,
        Percentiles(mean=1154.70, min=2, p50=1020, p90=2734, p99=4142, max=14050),
        Percentiles(mean=211.13, min=7, p50=129, p90=424, p99=601, max=1000),
        requests_per_second=5.530,
        dispersion=1.386,
    ),
    "mooncake-chat": Profile(
        "chat with long histories that come back",
        _MOONCAKE,
        Percentiles(mean=12035.06, min=891, p50=6909, p90=27367, p99=85400, max=126195),
        Percentiles(mean=342.62, min=1, p50=350, p90=597, p99=1119, max=2000),
        requests_per_second=3.401,
        dispersion=7.894,
        shared=0.3664,
        has_common_block=True,
    ),
    "code": Profile(
        "code completion in an editor: a file is sent again as it is typed",
        f"lengths and arrivals: azure-code, {_AZURE}; sharing assumed",
        _CODE_PROMPT,
        _CODE_OUTPUT,
        requests_per_second=2.567,
        dispersion=13.18,
        shared=0.5,
        hash_block_size=16,
    ),
    "agent": Profile(
        "tools and agents: every call repeats what led to it",
        "means and cache ratio of Mooncake's tool and agent trace (Qin et al., FAST 2025, Table 2); rate: its 23,608 "
        "rows an hour; spread and bursts assumed",
        LogNormal(mean=8596, variation=1.2, max=128_000),
        LogNormal(mean=182, variation=1.2, max=4096),
        requests_per_second=6.56,
        shared=0.59,
        has_common_block=True,
    ),
    "rag": Profile(
        "retrieval: passages that many questions share, then the question",
        "assumed: nothing published that could be fitted",
        LogNormal(mean=3000, variation=0.4, max=16_384),
        LogNormal(mean=200, variation=0.8, max=2048),
        requests_per_second=5.0,
        shared=0.4,
        has_common_block=True,
        hash_block_size=16,
    ),
    "long-context": Profile(
        "questions about long documents",
        f"{_MOONCAKE}, the synthetic one",
        Percentiles(mean=15325.48, min=13, p50=11587, p90=38611, p99=66456, max=191378),
        Percentiles(mean=149.12, min=1, p50=69, p90=389, p99=768, max=893),
        requests_per_second=3.907,
        dispersion=1.089,
        shared=0.6396,
    ),
    "beam": Profile(
        "beam search of width 4 over instructions",
        f"{_PAGED}, Alpaca; replacements: with 0.5 a step a model of beams comes to the paper's saving (Fig. 15b)",
        _ALPACA_PROMPT,
        _ALPACA_OUTPUT,
        requests_per_second=30.0,
        beam_width=4,
        replacements_per_step=0.5,
    ),
}
