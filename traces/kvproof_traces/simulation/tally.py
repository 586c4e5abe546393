"""Running sums: what a simulation keeps of its steps and requests, whatever their number."""

from __future__ import annotations

from kvproof_traces.simulation.clock import Clock
from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.result import Simulation
from kvproof_traces.simulation.settings import Pool


class Tally:
    """Sums over steps, in slots, blocks and sequences; and what became of the requests."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.tokens = self.promised = self.held = 0
        """Slots with a token; of those held, such as are or will be filled; and those held."""
        self.blocks = self.saved = 0
        """Blocks held, and blocks that would be held beside without sharing."""
        self.seqs = self.requests = self.peak_seqs = self.peak_requests = 0
        self.num_requests = self.num_finished = self.num_aborted = self.num_rejected = 0
        self.num_prompt_tokens = self.num_cached_tokens = self.num_recomputed_tokens = 0
        self.num_generated_tokens = self.num_preemptions = self.num_swapped_blocks = self.num_copies = 0

    @property
    def num_ended(self) -> int:
        return self.num_finished + self.num_aborted + self.num_rejected

    def count(self, num_steps: int, num_growing: int, num_seqs: int, num_requests: int) -> None:
        """Steps, in each of which so many ran, and as many of them as grow got a token."""
        self.num_steps += num_steps
        self.num_generated_tokens += num_steps * num_growing
        self.seqs += num_steps * num_seqs
        self.requests += num_steps * num_requests
        if num_seqs > self.peak_seqs and num_steps:
            self.peak_seqs = num_seqs
        if num_requests > self.peak_requests and num_steps:
            self.peak_requests = num_requests

    def end(self, entry: Entry) -> None:
        is_aborted = entry.request.abort_after is not None
        self.num_aborted += is_aborted
        self.num_finished += not is_aborted

    def result(self, pool: Pool, clock: Clock) -> Simulation:
        timed = clock.step_time is not None
        slots, steps = max(1, self.num_steps) * pool.num_slots, max(1, self.num_steps)
        return Simulation(
            num_requests=self.num_requests,
            num_finished=self.num_finished,
            num_aborted=self.num_aborted,
            num_rejected=self.num_rejected,
            num_steps=self.num_steps,
            mean_running_seqs=self.seqs / steps,
            peak_running_seqs=self.peak_seqs,
            mean_running_requests=self.requests / steps,
            peak_running_requests=self.peak_requests,
            token_share=self.tokens / slots,
            reserved_share=(self.promised - self.tokens) / slots,
            internal_share=(self.held - self.promised) / slots,
            external_share=1 - self.held / slots,
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_swapped_blocks=self.num_swapped_blocks,
            swapped_bytes=self.num_swapped_blocks * pool.block_size * pool.kv_bytes_per_token,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_block_copies=self.num_copies,
            sharing_saving=self.saved / max(1, self.blocks + self.saved),
            simulated_ms=clock.now_ms - clock.start_ms if timed else None,
            ttft_ms=clock.ttft.percentiles() if timed else None,
            tpot_ms=clock.tpot.percentiles() if timed else None,
        )
