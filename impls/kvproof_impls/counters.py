"""What an allocator has done, counted honestly: tokens of a preempted sequence that are found again are no hits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Running totals, never reset by the allocator."""

    num_prompt_tokens: int = 0
    """Of first admissions."""
    num_hit_tokens: int = 0
    """Of those, found cached."""
    num_readmitted_tokens: int = 0
    """Of admissions after a preemption, prompt and what was generated."""
    num_readmitted_hit_tokens: int = 0
    """Of those, found cached; the rest is computed again."""
    num_preemptions: int = 0
    num_copies: int = 0
    """Blocks copied on write."""

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / max(1, self.num_prompt_tokens)

    @property
    def num_recomputed_tokens(self) -> int:
        return self.num_readmitted_tokens - self.num_readmitted_hit_tokens

    def admitted(self, num_tokens: int, num_cached: int, again: bool) -> None:
        if again:
            self.num_readmitted_tokens += num_tokens
            self.num_readmitted_hit_tokens += num_cached
        else:
            self.num_prompt_tokens += num_tokens
            self.num_hit_tokens += num_cached
