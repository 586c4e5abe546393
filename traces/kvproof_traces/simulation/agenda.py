"""What is due at which step."""

from __future__ import annotations

from heapq import heappop, heappush

from kvproof_traces.simulation.entry import Entry

NEVER = 1 << 62


class Agenda:
    """Entries by step. One that was preempted stays on it: whoever takes it off has to look whether it still holds."""

    def __init__(self) -> None:
        self._due: dict[int, list[Entry]] = {}
        self._steps: list[int] = []

    def add(self, step: int, entry: Entry) -> None:
        if step in self._due:
            self._due[step].append(entry)
        else:
            self._due[step] = [entry]
            heappush(self._steps, step)

    def pop(self, step: int) -> list[Entry]:
        """What is due at ``step``, in the order of adding; what was due before is forgotten."""
        while self._steps and self._steps[0] < step:
            del self._due[heappop(self._steps)]
        if not self._steps or self._steps[0] > step:
            return []
        return self._due.pop(heappop(self._steps))

    @property
    def next_step(self) -> int:
        return self._steps[0] if self._steps else NEVER
