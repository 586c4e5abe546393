"""The laws of a paged KV cache: one id, one sentence, one reason each.

The numbers follow the families A allocator, B prefix cache, C copy-on-write and moves, D scheduling, E step tensors,
F cache writes, G attention kernels, Q quantised KV, H the suite itself. SPEC.md prints this table; every law test
carries ``@pytest.mark.law(id)``.
"""

from __future__ import annotations

import hashlib
import json

from kvproof_suites.laws.allocators import ALLOCATORS
from kvproof_suites.laws.kernels import KERNELS
from kvproof_suites.laws.law import Law
from kvproof_suites.laws.suite import SUITE

LAWS: dict[str, Law] = {law.id: law for law in (*KERNELS, *ALLOCATORS, *SUITE)}
"""In the order in which they run."""

NOT_LAWS: dict[str, str] = {
    "B7": "that a hit is the intersection of all groups and components: the contract has one table a sequence; an "
    "allocator with a table a group of layers, and the window of each, would be needed",
    "G16": "that all configurations of one kernel agree: the contract shows one launch a plan; a method that lists a "
    "kernel's variants would be needed. Every implementation is held to the oracle by itself",
    "Q3": "that calibration sees only real data: the contract hands scales over, and never asks for them",
}
"""Properties of the catalogue that the contract does not show, and what would be needed."""

__all__ = ["LAWS", "NOT_LAWS", "Law", "version"]


def version() -> str:
    """Of the set of laws: how many there are, and a hash of their ids and sentences, so that two verdicts under one
    version are about the same claims. How a law is tested is a matter of kvproof's own version."""
    said = json.dumps(sorted((law.id, law.sentence) for law in LAWS.values()))
    return f"{len(LAWS)} laws, {hashlib.sha256(said.encode()).hexdigest()[:8]}"
