"""What time it is in a simulation, where steps take any."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.latencies import Latencies
from kvproof_traces.simulation.step_time import StepTime


class Clock:
    """Without a ``step_time`` it stands still, and everybody has come already."""

    def __init__(self, step_time: StepTime | None, now_ms: float) -> None:
        self.step_time = step_time
        self.start_ms = self.now_ms = now_ms
        self.ttft, self.tpot = Latencies(), Latencies()

    def wait_for(self, arrival_ms: float | None) -> None:
        """Idle until then."""
        if arrival_ms is not None and arrival_ms > self.now_ms:
            self.now_ms = arrival_ms

    def step(self, num_new_tokens: int, num_context_tokens: int, num_swapped_tokens: int) -> None:
        if self.step_time is not None:
            self.now_ms += self.step_time(num_new_tokens, num_context_tokens, num_swapped_tokens)

    def steps(self, most: int, num_seqs: int, num_context_tokens: int, arrival_ms: float | None) -> int:
        """At most so many steps of pure decoding, up to the one in which somebody comes; gives how many."""
        if self.step_time is None:
            return most
        num_steps, now_ms, step_time = 0, self.now_ms, self.step_time
        until_ms = float("inf") if arrival_ms is None else arrival_ms
        while num_steps < most and now_ms < until_ms:
            num_context_tokens += num_seqs
            now_ms += step_time(num_seqs, num_context_tokens, 0)
            num_steps += 1
        self.now_ms = now_ms
        return num_steps

    def first_tokens(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.first_ms is None and entry.final:
                entry.first_ms = self.now_ms
                self.ttft.add(self.now_ms - entry.arrival_ms)

    def last_token(self, entry: Entry) -> None:
        if entry.first_ms is not None and entry.final > 1:
            self.tpot.add((self.now_ms - entry.first_ms) / (entry.final - 1))
