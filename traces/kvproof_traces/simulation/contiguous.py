"""A reservation for every sequence, all at once, from a buddy allocator."""

from __future__ import annotations

from kvproof_traces.simulation.buddy import Buddy, order_of
from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.settings import Pool
from kvproof_traces.simulation.tally import Tally


class ContiguousPool:
    """The calls of ``PagedPool``. Branches share nothing: each has a reservation and its own copy of the prompt."""

    diverging = None  # beams change nothing: each has its own copy of everything
    free = 0
    has_freed, can_glide = False, True

    def __init__(self, pool: Pool) -> None:
        self.policy, self.num_slots = pool.policy, pool.num_slots
        self.max_model_len = pool.max_model_len
        self.buddy = Buddy(pool.num_slots)
        self.tokens = self.growing = 0
        self.reserved = self.promised = 0
        """Slots asked for, and of these such as will be filled."""

    @property
    def reads(self) -> int:
        return self.tokens

    def fits_alone(self, entry: Entry) -> bool:
        num_tokens = entry.prompt + entry.request.num_output_tokens
        longest = self.max_model_len or num_tokens
        entry.width = entry.num_branches
        return num_tokens <= longest and order_of(self._reservation(entry)) < self.num_slots.bit_length()

    def num_blocks_to_admit(self, entry: Entry) -> int:
        """Slots, rather: the pool has no blocks."""
        return entry.width * self._reservation(entry)

    def has_room(self, entry: Entry, *, alone: bool) -> bool:
        """Takes it, where there is: ``admit`` has to follow."""
        return self._take(entry)

    def admit(self, entry: Entry) -> int:
        entry.num_computed = 0
        self.reserved += entry.width * self._reservation(entry)
        self.promised += entry.width * (entry.prompt + entry.final)
        return entry.width * (entry.prompt + entry.num_generated)

    def num_blocks_to_prefill(self, entry: Entry, num_tokens: int, num_left: int) -> int:
        return 0

    def prefill(self, entry: Entry, num_tokens: int, num_left: int) -> None:
        assert entry.num_computed is not None
        entry.num_computed += num_tokens
        self.tokens += num_tokens

    def decode(self, entry: Entry, step: int) -> None:
        entry.num_computed = None
        entry.base = entry.num_generated - step
        self.growing += entry.width if entry.final else 0

    def shortage(self, step: int) -> int:
        return 0

    def grow(self, step: int) -> None:
        self.tokens += self.growing

    def observe(self, tally: Tally) -> None:
        tally.tokens += self.tokens
        tally.held += self.reserved
        tally.promised += self.promised

    def num_steps_with_room(self, step: int, until: int) -> int:
        return until - step

    def glide(self, step: int, until: int, tally: Tally) -> int:
        num_steps = until - step
        tally.tokens += num_steps * self.tokens + self.growing * (num_steps * (num_steps + 1) // 2)
        tally.held += num_steps * self.reserved
        tally.promised += num_steps * self.promised
        self.tokens += num_steps * self.growing
        return num_steps

    def commit(self, entry: Entry) -> bool:
        return False

    def release(self, entry: Entry, context: int, *, is_new: bool) -> tuple[int, int]:
        self._give_back(entry)
        decodes = entry.num_computed is None
        num_tokens = entry.width * context if decodes else entry.num_computed or 0
        self.growing -= entry.width if decodes and entry.final else 0
        self.tokens -= num_tokens
        self.reserved -= entry.width * self._reservation(entry)
        self.promised -= entry.width * (entry.prompt + entry.final)
        return 0, num_tokens

    def swap_out(self, entry: Entry, num_blocks: int) -> None:
        """Never asked for: nothing that runs gives way."""

    def _reservation(self, entry: Entry) -> int:
        """Slots a sequence asks for. Nobody knows beforehand that a client will go away."""
        num_output_tokens = entry.request.num_output_tokens
        if self.policy == "contiguous-max":
            assert self.max_model_len is not None
            return self.max_model_len
        if self.policy == "contiguous-pow2":
            num_output_tokens = 1 << order_of(num_output_tokens)
        num_slots = entry.prompt + num_output_tokens
        return min(num_slots, self.max_model_len) if self.max_model_len else num_slots

    def _take(self, entry: Entry) -> bool:
        try:
            for _ in range(entry.width):
                entry.places.append(self.buddy.take(self._reservation(entry)))
        except MemoryError:
            self._give_back(entry)
            return False
        return True

    def _give_back(self, entry: Entry) -> None:
        for place in reversed(entry.places):  # so that a try that failed changes nothing
            self.buddy.give_back(*place)
        entry.places.clear()
