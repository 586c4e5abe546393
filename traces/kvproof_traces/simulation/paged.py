"""Blocks on demand. Sequences that need one in the same step are a count, so that a step costs the same for any batch.

A sequence of context ``c`` needs a block for its next token when ``c`` is a multiple of the block size, so in every
``block_size``-th step: which steps those are is its phase, and ``need[phase]`` counts the sequences of that phase.
"""

from __future__ import annotations

from kvproof_traces.simulation.diverging import Diverging
from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.prefix import PrefixCache
from kvproof_traces.simulation.settings import Pool
from kvproof_traces.simulation.tally import Tally
from kvproof_traces.simulation.window import Window


class PagedPool:
    """Counts of blocks and tokens. ``entry.held`` is what an entry has through the prefix cache, if there is one."""

    def __init__(self, pool: Pool, watermark: float) -> None:
        self.block_size, self.num_blocks = pool.block_size, pool.num_blocks
        self.max_model_len = pool.max_model_len
        self.free = self.num_blocks
        """Blocks without an owner, cached ones included."""
        self.spare = int(watermark * self.num_blocks)
        self.need = [0] * self.block_size
        self.growing = 0
        """Sequences that get a token a step."""
        self.tokens = self.reads = 0
        """Slots with a token; and tokens of context, where one that two sequences share counts twice."""
        self.saved = 0
        """Blocks that would be held beside if nothing were shared."""
        self.has_freed = False
        """Whether the last step gave blocks back though nothing had ended."""
        self.diverging = Diverging(self)
        self.cache = PrefixCache(self) if pool.prefix_cache else None
        self.window = Window(pool.window, self.block_size) if pool.window is not None else None
        self.can_glide = self.window is None

    def fits_alone(self, entry: Entry) -> bool:
        num_tokens = entry.prompt + entry.final
        longest = self.max_model_len or num_tokens
        if self.window is not None and entry.num_branches > 1:
            raise ValueError(
                f"Pool.window: request {entry.request.request_id} has {entry.num_branches} branches, which is not "
                "simulated together with a window; leave one out"
            )
        return num_tokens <= longest and -(-num_tokens // self.block_size) <= self.num_blocks

    def num_blocks_to_admit(self, entry: Entry) -> int:
        """From the free ones, for everything up to now."""
        if entry.on_host:
            return entry.on_host
        num_blocks = -(-entry.prompt // self.block_size)
        if entry.num_generated:
            num_blocks = self._blocks(entry, entry.prompt + entry.num_generated, self._num_saved(entry))
        return num_blocks - self.cache.num_found_blocks(entry) if self.cache is not None else num_blocks

    def has_room(self, entry: Entry, *, alone: bool) -> bool:
        return self.free - self.num_blocks_to_admit(entry) >= (0 if alone else self.spare)

    def admit(self, entry: Entry) -> int:
        """Take what the host or the cache has; gives the distinct tokens that are left to compute."""
        context = entry.prompt + entry.num_generated
        entry.num_computed = 0
        if entry.on_host:
            self._take_back(entry, context)
            return 0
        entry.num_saved, entry.branches = self._num_saved(entry), None
        shared = entry.prompt // self.block_size * self.block_size if entry.num_generated else context
        entry.num_saved_tokens = (entry.width - 1) * shared
        if self.cache is not None:
            entry.num_computed = self.cache.acquire(entry) * self.block_size
        return entry.width * context - entry.num_saved_tokens - entry.num_computed

    def _take_back(self, entry: Entry, context: int) -> None:
        num_gone = self.window.num_gone(context) if self.window is not None else 0
        num_tokens = entry.width * context - entry.num_saved_tokens - num_gone * self.block_size
        self.free -= entry.on_host
        self.tokens += num_tokens
        self.reads += num_tokens
        self._settle()
        if entry.held is not None:
            entry.held.next_key = entry.held.num_written_blocks = 0  # to be published anew

    def num_blocks_to_prefill(self, entry: Entry, num_tokens: int, num_left: int) -> int:
        """For ``num_tokens`` of the ``num_left`` that are not computed."""
        assert entry.num_computed is not None
        after = self._prefilled(entry, entry.num_computed + num_tokens)
        if num_tokens == num_left:
            after = self._blocks(entry, entry.prompt + entry.num_generated, entry.num_saved)
        return after - self._prefilled(entry, entry.num_computed)

    def prefill(self, entry: Entry, num_tokens: int, num_left: int) -> None:
        """Take these blocks, which must be free."""
        assert entry.num_computed is not None
        self.free -= self.num_blocks_to_prefill(entry, num_tokens, num_left)
        num_before = self._counted(entry, entry.num_computed)
        entry.num_computed += num_tokens
        num_after = entry.num_computed if num_tokens == num_left else self._counted(entry, entry.num_computed)
        self.tokens += num_after - num_before
        self.reads += num_after - num_before
        self._settle()

    def decode(self, entry: Entry, step: int) -> None:
        """Everything is computed: from ``step`` on each branch grows by a token a step."""
        entry.num_computed = None
        entry.base = entry.num_generated - step
        self.reads += entry.num_saved_tokens
        self.saved += entry.num_saved
        self.growing += entry.width if entry.final else 0
        self.need[-(entry.prompt + entry.base) % self.block_size] += entry.width if entry.final else 0
        self.diverging.begin(entry)
        if self.window is not None:
            self.window.join(entry, step)

    def shortage(self, step: int) -> int:
        """Blocks missing for the tokens of ``step``; not above 0 when there are enough."""
        return self.need[step % self.block_size] + self.diverging.num_due - self.free

    def widen(self, entry: Entry, context: int) -> None:
        """A branch more, before the tokens of this step."""
        entry.width += 1
        self.growing += 1
        self.need[-(entry.prompt + entry.base) % self.block_size] += 1
        self.reads += context

    def grow(self, step: int) -> None:
        """The tokens of ``step``, for which there is room."""
        self.has_freed = bool(self.diverging.due)
        if self.diverging.due:
            self.diverging.make(step)
        self.free -= self.need[step % self.block_size]
        self.tokens += self.growing
        self.reads += self.growing
        if self.window is not None:
            num_left = self.window.step(step)
            self.free += num_left
            self.tokens -= num_left * self.block_size
            self.reads -= num_left * self.block_size
            self.has_freed |= num_left > 0
        self._settle()

    def observe(self, tally: Tally) -> None:
        """Add one step, as it stands."""
        num_used = self.num_blocks - self.free
        tally.tokens += self.tokens
        tally.held += num_used * self.block_size
        tally.promised += self.tokens
        tally.blocks += num_used
        tally.saved += self.saved

    def num_steps_with_room(self, step: int, until: int) -> int:
        """From ``step`` on, at most up to ``until``, before blocks run out."""
        start, size, need, free = step, self.block_size, self.need, self.free
        while step < until and (num_needed := need[step % size]) <= free:
            free -= num_needed
            step += 1
        return step - start

    def glide(self, step: int, until: int, tally: Tally) -> int:
        """Steps from ``step`` on in which nothing happens but growth, at most up to ``until``; gives how many."""
        start, sum_of_free = step, 0
        size, need, free = self.block_size, self.need, self.free
        while step < until and (num_needed := need[step % size]) <= free:
            free -= num_needed
            sum_of_free += free
            step += 1
        num_steps, self.free = step - start, free
        self._observe_many(num_steps, num_steps * self.num_blocks - sum_of_free, tally)
        self.tokens += num_steps * self.growing
        self.reads += num_steps * self.growing
        self._settle()
        return num_steps

    def _observe_many(self, num_steps: int, sum_of_used: int, tally: Tally) -> None:
        num_tokens = num_steps * self.tokens + self.growing * (num_steps * (num_steps + 1) // 2)
        tally.tokens += num_tokens
        tally.promised += num_tokens
        tally.held += sum_of_used * self.block_size
        tally.blocks += sum_of_used
        tally.saved += num_steps * self.saved

    def commit(self, entry: Entry) -> bool:
        """What was prefilled in this step is written; whether somebody else may find it."""
        if self.cache is None:
            return False
        num_tokens = entry.prompt + entry.num_generated
        if entry.num_computed is not None:
            num_tokens = self._counted(entry, entry.num_computed)
        return self.cache.commit(entry, num_tokens // self.block_size)

    def release(self, entry: Entry, context: int, *, is_new: bool) -> tuple[int, int]:
        """Give everything back; ``context`` tokens a branch when it decodes. Gives the blocks and the tokens it had.

        ``is_new``: admitted in this step, so that nothing is written.
        """
        self.diverging.withdraw(entry)
        if entry.num_computed is None:
            num_blocks, num_tokens = self._stop_decoding(entry, context)
        else:
            num_blocks = self._prefilled(entry, entry.num_computed)
            num_tokens = self._counted(entry, entry.num_computed)
            self.reads -= num_tokens
        num_cached = 0
        if self.cache is not None and entry.held is not None:
            is_written = entry.num_computed is None and not is_new
            num_cached = self.cache.release(entry, num_blocks, context if is_written else None)
        self.free += num_blocks - num_cached
        self.tokens -= num_tokens - num_cached * self.block_size
        self._settle()
        return num_blocks, num_tokens

    def swap_out(self, entry: Entry, num_blocks: int) -> None:
        """``num_blocks``, released just now, are on the host."""
        entry.on_host = num_blocks
        if self.cache is not None:
            self.cache.forget_remnant(entry)

    def _stop_decoding(self, entry: Entry, context: int) -> tuple[int, int]:
        num_gone = self.window.release(entry, context) if self.window is not None else 0
        if entry.final:
            self.growing -= entry.width
            self.need[-(entry.prompt + entry.base) % self.block_size] -= entry.width
        self.saved -= entry.num_saved
        self.reads -= entry.width * context - num_gone * self.block_size
        num_tokens = entry.width * context - entry.num_saved_tokens - num_gone * self.block_size
        return self._blocks(entry, context, entry.num_saved) - num_gone, num_tokens

    def _settle(self) -> None:
        if self.cache is not None:
            self.cache.settle()

    def _blocks(self, entry: Entry, context: int, num_saved: int) -> int:
        return entry.width * -(-context // self.block_size) - num_saved

    def _counted(self, entry: Entry, num_tokens: int) -> int:
        """Tokens of an unfinished prefill that have a slot: of several branches those of the prompt alone."""
        return num_tokens if entry.width == 1 else min(num_tokens, entry.prompt)

    def _prefilled(self, entry: Entry, num_tokens: int) -> int:
        return -(-self._counted(entry, num_tokens) // self.block_size)

    def _num_saved(self, entry: Entry) -> int:
        """Blocks that sharing the prompt saves at admission; before the first token its tail is shared as well."""
        if entry.width == 1:
            return 0
        num_tokens = entry.prompt if entry.num_generated else entry.prompt + self.block_size - 1
        return (entry.width - 1) * (num_tokens // self.block_size)
