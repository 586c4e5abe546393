"""A request on its way through a simulation."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from kvproof_traces.request import Request

if TYPE_CHECKING:
    from kvproof_traces.simulation.forks import Branches
    from kvproof_traces.simulation.prefix import Held


class Entry:
    """Lengths and counts. What it has generated outlives a preemption, its blocks don't.

    While it decodes, nothing here changes from step to step: before step ``t`` each branch has generated ``base + t``
    tokens, and of ``width * ceil(context / block_size)`` blocks ``num_saved`` are not there because branches share.
    """

    __slots__ = (
        "arrival_ms",
        "base",
        "branches",
        "final",
        "first_ms",
        "held",
        "key",
        "leaves",
        "next_fork",
        "num_branches",
        "num_computed",
        "num_generated",
        "num_lost",
        "num_saved",
        "num_saved_tokens",
        "on_host",
        "places",
        "prompt",
        "request",
        "running",
        "was_admitted",
        "width",
    )

    def __init__(self, request: Request, key: Hashable) -> None:
        self.request, self.key = request, key
        self.arrival_ms = request.arrival_ms
        self.prompt = request.num_prompt_tokens
        self.final = request.num_generated_tokens
        self.width = request.num_samples
        """Branches that are live."""
        self.num_branches = request.num_branches if request.forks else self.width
        self.num_generated = 0
        """Tokens of each branch when it was last admitted."""
        self.num_computed: int | None = 0
        """Distinct tokens whose prefill is done; None while it decodes."""
        self.base = 0
        self.num_saved = self.num_saved_tokens = 0
        """Blocks and slots that its branches would need beside if they shared nothing."""
        self.next_fork = 0
        self.branches: Branches | None = None
        self.on_host = 0
        """Blocks swapped out."""
        self.num_lost = 0
        """Tokens that the last preemption threw away."""
        self.running = self.was_admitted = self.leaves = False
        self.first_ms: float | None = None
        self.held: Held | None = None
        self.places: list[tuple[int, int]] = []
        if request.forks and self.final:
            # Before the first token a fork is one sample more, or none.
            self.next_fork = sum(position == 0 for position, _, _ in request.forks)
            self.width = len(self.branch_ids())

    def branch_ids(self) -> set[int]:
        """That are live after the forks so far."""
        children = {child for _, _, child in self.request.forks[: self.next_fork]}
        return children.union(range(self.request.num_samples))

    def context(self, step: int) -> int:
        """Tokens of each branch before ``step``, while it decodes."""
        return self.prompt + self.base + step

    @property
    def last_step(self) -> int:
        """In which its last token comes, while it decodes; one without output is there for a step."""
        return max(self.final - 1, 0) - self.base
