"""A request on its way through a running batch."""

from __future__ import annotations

from kvproof_traces.request import Request
from kvproof_traces.token_ids import Output, TokenIds, Tokens, joined

Seq = tuple[int, int]
"""(index of the request, branch): the sequence id that the allocator sees."""


class Entry:
    """What it has generated outlives a preemption; its blocks don't.

    While it runs, its tokens are not counted one by one: all branches have generated ``start`` + the number of steps
    that the batch has made.
    """

    __slots__ = (
        "ahead",
        "index",
        "num_branches",
        "num_forks",
        "num_generated",
        "num_total",
        "outputs",
        "prompt",
        "request",
        "start",
        "was_admitted",
    )

    def __init__(self, index: int, request: Request) -> None:
        self.index = index
        self.request = request
        self.num_branches = 1 if request.num_samples == 1 and not request.forks else request.num_branches
        self.num_total = request.num_generated_tokens
        self.prompt: Tokens | None = None
        self.outputs: dict[Seq, Output] = {}
        """One a branch."""
        self.num_generated = 0
        """Output tokens that every branch has, as of the last time it was admitted or preempted."""
        self.start = 0
        self.num_forks = 0
        """Forks of the request that were made."""
        self.ahead: set[Seq] = set()
        """Branches that had their token of a step when blocks ran out for the others: they get no second one."""
        self.was_admitted = False

    @property
    def idle(self) -> bool:
        """It runs for one step in which it generates nothing: the client was gone at once."""
        return not self.num_total

    @property
    def next_fork(self) -> int | None:
        """Output position of the next fork, if one comes before the end."""
        forks = self.request.forks
        if self.num_forks < len(forks) and forks[self.num_forks][0] < self.num_total:
            return forks[self.num_forks][0]
        return None

    @property
    def max_tokens(self) -> int:
        """Length of a branch when the request ends, unless the client goes away before."""
        return self.request.num_prompt_tokens + self.request.num_output_tokens

    def num_held(self, seq: Seq) -> int:
        """Output tokens of a branch while the entry waits."""
        return self.num_generated + (seq in self.ahead)

    def with_outputs(self, seq: Seq) -> Tokens:
        """The prompt and what a branch has generated while the entry waits."""
        assert self.prompt is not None
        num_held = self.num_held(seq)
        return joined([self.prompt, self.outputs[seq].tokens(num_held)]) if num_held else self.prompt

    def begin(self, ids: TokenIds) -> Tokens:
        """Make up the prompt and the first samples, on first admission; the prompt is returned every time."""
        if self.prompt is None:
            self.prompt = ids.prompt(self.request)
            self.outputs = {(self.index, branch): Output() for branch in range(self.request.num_samples)}
            self.draw(ids, 0)
        return self.prompt

    def draw(self, ids: TokenIds, position: int) -> None:
        """Ids for what all branches generate from ``position`` up to the next fork or the end."""
        fork = self.next_fork
        num_tokens = (self.num_total if fork is None else fork) - position
        for output in self.outputs.values():
            output.draw(position, ids.fresh(num_tokens))
