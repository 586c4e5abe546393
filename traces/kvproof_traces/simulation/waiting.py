"""The queue: requests that have come, those that were preempted first, and the stream of those that will come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable

from kvproof_traces.request import Request
from kvproof_traces.simulation.entry import Entry


class Waiting:
    """At most ``lookahead`` requests are taken from the stream before they are admitted, so that memory stays constant
    however long the queue would be: those behind have come as well, but nobody asks for them yet."""

    def __init__(
        self,
        requests: Iterable[Request],
        lookahead: int,
        key_of: Callable[[Request], Hashable],
        accept: Callable[[Entry], bool],
        *,
        timed: bool,
    ) -> None:
        self._stream = iter(requests)
        self._lookahead, self._key_of, self._accept, self._timed = lookahead, key_of, accept, timed
        self._next: Request | None = next(self._stream, None)
        self.first_ms = self._next.arrival_ms if self._next else 0.0
        self.queue: deque[Entry] = deque()
        self.num_requests = 0

    def fill(self, now_ms: float) -> bool:
        """Take in who has come by ``now_ms``; whether anybody was."""
        before = self.num_requests
        while self._next is not None and len(self.queue) < self._lookahead:
            if self._timed and self._next.arrival_ms > now_ms:
                break
            entry = Entry(self._next, self._key_of(self._next))
            if self._accept(entry):
                self.queue.append(entry)
            self.num_requests += 1
            self._advance(self._next)
        return self.num_requests > before

    @property
    def is_over(self) -> bool:
        """Nobody waits, and nobody will come."""
        return self._next is None and not self.queue

    def next_arrival_ms(self) -> float | None:
        """When the next one comes that the queue has a place for; None where there is none."""
        return None if self._next is None or len(self.queue) >= self._lookahead else self._next.arrival_ms

    def _advance(self, before: Request) -> None:
        self._next = next(self._stream, None)
        if self._timed and self._next is not None and self._next.arrival_ms < before.arrival_ms:
            raise ValueError(
                f"requests: {self._next.request_id} arrives before {before.request_id}; sort by arrival_ms"
            )
