"""Chats whose prompts are cut at 1,024 tokens: why knowing the length does not help who reserves (section 6.5)."""

from __future__ import annotations

from kvproof_suites.paper.allocators import make
from kvproof_suites.paper.claim import EXACT, Claim, Computed
from kvproof_suites.paper.composition import NUM_SLOTS, ORCA
from kvproof_suites.paper.lengths import MAX_MODEL_LEN
from kvproof_suites.paper.worked_example import num_admitted

NUM_TOKENS = 1024 + 1
"""A full prompt and the first token of an answer: already too long for a run of 1,024 slots."""
SOURCE = "Kwon et al. 2023, section 6.5: Orca's variants behave alike"

CLAIMS = tuple(
    Claim(policy, f"{name}: sequences of {NUM_TOKENS:,} tokens", 7, SOURCE, EXACT, "the pool / 2,048", "sequences")
    for policy, name in ORCA.items()
)


def compute() -> Computed:
    """The real buddy allocator rounds a length just above 1,024 up to 2,048."""
    allocators = {policy: make(f"contiguous-{policy}", NUM_SLOTS, 1, MAX_MODEL_LEN) for policy in ORCA}
    return Computed({policy: num_admitted(each, [NUM_TOKENS] * 16) for policy, each in allocators.items()})
