"""What comes of a simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Percentiles:
    """Of a latency, in ms. Percentiles come from a histogram whose bins are 1 % wide: exact to half a percent."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Simulation:
    """What came of a simulation. Means and shares are over steps; a step is looked at after its tokens have their
    slots and before what has ended gives its own back."""

    num_requests: int
    num_finished: int
    num_aborted: int
    num_rejected: int
    """Requests that could not fit even alone."""
    num_steps: int
    mean_running_seqs: float
    """Branches count."""
    peak_running_seqs: int
    mean_running_requests: float
    peak_running_requests: int
    token_share: float
    """Slots that hold a token / slots of the pool; a shared slot counts once. The four shares add up to 1."""
    reserved_share: float
    """Slots that their sequence will fill later; contiguous only."""
    internal_share: float
    """Slots reserved and never filled, or empty in the last block of a sequence."""
    external_share: float
    """The rest: free, lost to rounding between reservations, or (paged) cached without an owner."""
    num_preemptions: int
    num_recomputed_tokens: int
    """Tokens computed again after a preemption, those found cached not counted."""
    num_swapped_blocks: int
    """Out and in."""
    swapped_bytes: int
    num_prompt_tokens: int
    """At first admission."""
    num_cached_tokens: int
    """Of these, found in the prefix cache."""
    num_generated_tokens: int
    num_block_copies: int
    """Copies on write. A fork copies a partly filled last block at once."""
    sharing_saving: float
    """Blocks saved by sharing / blocks without sharing (PagedAttention, section 6.3), summed over steps."""
    simulated_ms: float | None = None
    """From the first arrival to the last token; None without a step time, as the latencies."""
    ttft_ms: Percentiles | None = None
    """Arrival to first token."""
    tpot_ms: Percentiles | None = None
    """Mean time of a further token, by request."""

    @property
    def prefix_hit_rate(self) -> float:
        """Prompt tokens found cached / prompt tokens, at first admission."""
        return self.num_cached_tokens / max(1, self.num_prompt_tokens)

    @property
    def waste(self) -> float:
        """Share of the held slots, in live blocks or reservations, that hold no token."""
        held = self.token_share + self.reserved_share + self.internal_share
        return 1 - self.token_share / held if held else 0.0
