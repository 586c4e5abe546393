"""The smallest serving loop: admit while there is room, decode one token each, preempt the last one admitted.

The oldest request is never preempted for a younger one, so that it gains a token in every round; a request that fits
into the empty pool therefore ends, and the number of rounds is bounded by the tokens to generate. An allocator that
exceeds the bound has refused what it had room for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.swapping import swap_in, swap_out


class Request(NamedTuple):
    name: str
    num_prompt: int
    num_output: int


@dataclass
class Serving:
    driver: Driver
    swaps: bool
    """Preempt to the host while it has room; otherwise forget, and compute anew."""
    waiting: deque[str] = field(default_factory=deque)
    running: list[str] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)
    num_left: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def serve(self, requests: Sequence[Request]) -> None:
        """Run all ``requests`` to their end (D3)."""
        for name, num_prompt, num_output in requests:
            self.waiting.append(name)
            self.texts[name] = self.driver.fresh_tokens(num_prompt)
            self.num_left[name] = num_output
        budget = sum(self.num_left.values()) + 2 * len(requests) + 2
        for _ in range(budget):
            if not self.waiting and not self.running:
                return
            self.admit()
            self.decode()
        unfinished = [*self.running, *self.waiting]
        self.driver.report("D3", f"after {budget} rounds {unfinished} have not ended; each fits into the empty pool")

    def admit(self) -> None:
        while self.waiting:
            name = self.waiting[0]
            if not self.resume(name):
                if not self.running:
                    self.refused.append(self.waiting.popleft())  # alone in the pool, and it does not fit
                return
            self.running.append(self.waiting.popleft())

    def resume(self, name: str) -> bool:
        try:
            if name in self.driver.swapped:
                swap_in(self.driver, name)
            elif self.driver.ask("can_allocate", len(self.texts[name])):
                self.driver.allocate(name, self.texts[name])
            else:
                return False
        except MemoryError:
            return False
        return True

    def decode(self) -> None:
        """A token for each running sequence, oldest first; whoever finds no room sends the youngest away."""
        for name in list(self.running):
            while name in self.running:
                try:
                    self.driver.append(name, [self.num_left[name]])
                except MemoryError:
                    self.preempt(self.running.pop())
                    continue
                self.finish_token(name)
                break

    def finish_token(self, name: str) -> None:
        self.texts[name].append(self.num_left[name])
        self.num_left[name] -= 1
        if not self.num_left[name]:
            self.running.remove(name)
            self.driver.free(name)

    def preempt(self, name: str) -> None:
        self.waiting.appendleft(name)
        try:
            if self.swaps:
                swap_out(self.driver, name)
                return
        except MemoryError:
            pass  # the host is full: compute it anew
        self.driver.free(name)
