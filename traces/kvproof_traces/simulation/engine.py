"""The loop: who is admitted, who gives way, who ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from kvproof_traces.request import Request
from kvproof_traces.simulation.agenda import Agenda
from kvproof_traces.simulation.clock import Clock
from kvproof_traces.simulation.contiguous import ContiguousPool
from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.paged import PagedPool
from kvproof_traces.simulation.settings import Pool, Scheduler
from kvproof_traces.simulation.step_time import StepTime
from kvproof_traces.simulation.tally import Tally
from kvproof_traces.simulation.waiting import Waiting


class Engine:
    """One simulation, to be run once."""

    def __init__(
        self,
        requests: Iterable[Request],
        pool: Pool,
        scheduler: Scheduler,
        step_time: StepTime | None,
        key_of: Callable[[Request], Hashable],
    ) -> None:
        self.scheduler = scheduler
        self.pool: PagedPool | ContiguousPool
        self.pool = PagedPool(pool, scheduler.watermark) if pool.is_paged else ContiguousPool(pool)
        self.tally = Tally()
        lookahead = 1 if scheduler.admission == "stop" else scheduler.lookahead
        self.waiting = Waiting(requests, lookahead, key_of, self._accept, timed=step_time is not None)
        self.running: dict[Entry, None] = {}  # in order of admission
        self.num_seqs = 0
        """Of those that run, with all branches there may be."""
        self.ends = Agenda()
        self.step, self.clock = 0, Clock(step_time, self.waiting.first_ms)
        self.new: list[Entry] = []
        """Whose prefill was completed in this step."""
        self.partial: Entry | None = None
        """Whose prefill goes on; always the one admitted last."""
        self.num_left = 0
        """Tokens that it still has to compute."""
        self.num_prefilled = self.num_swapped = 0
        """Tokens of this step."""
        self.num_free_host_blocks = pool.num_host_blocks
        self.may_admit = True
        """Whether something was freed since nobody fitted any more."""

    def run(self, on_progress: Callable[[int], None] | None, *, saturated: bool = False) -> Tally:
        while self._begin() and not (saturated and self.waiting.is_over):
            self._make_room()
            if self.running:
                self._grow()
                self._end()
            self.new.clear()
            self.step += 1
            self._glide()
            if on_progress is not None:
                on_progress(self.tally.num_ended)
        self.tally.num_requests = self.waiting.num_requests
        self.tally.num_copies = self.pool.diverging.num_copies if self.pool.diverging is not None else 0
        return self.tally

    def _begin(self) -> bool:
        """Admit; False when no work is left."""
        budget = self.scheduler.token_budget
        self.num_left_in_step = (1 << 62) if budget is None else budget - self.pool.growing
        self.num_prefilled = self.num_swapped = 0
        if self.partial is not None:
            self._continue_prefill(self.partial)
        while True:
            if not self.running and not self.waiting.queue:
                self.clock.wait_for(self.waiting.next_arrival_ms())
            if self.waiting.fill(self.clock.now_ms) or self.may_admit:
                self.may_admit = False
                self._admit()
            if self.running:
                return True
            if not self.waiting.queue:
                return False
            self.waiting.queue.popleft()  # it has the pool for itself, and does not fit
            self.tally.num_rejected += 1
            self.may_admit = True

    def _accept(self, entry: Entry) -> bool:
        fits = entry.num_branches <= self.scheduler.max_num_seqs and self.pool.fits_alone(entry)
        self.tally.num_rejected += not fits
        return fits

    def _admit(self) -> None:
        queue, index = self.waiting.queue, 0
        while index < len(queue):
            if self.scheduler.admission == "smallest":
                index = self._smallest()
            if self._try(queue[index]):
                del queue[index]
                self.waiting.fill(self.clock.now_ms)
                index = index if self.scheduler.admission == "skip" else 0
            elif self.scheduler.admission == "skip":
                index += 1
            else:
                return

    def _smallest(self) -> int:
        """The place in the queue of the request that needs least; of equal ones the first."""
        needs = [self.pool.num_blocks_to_admit(entry) for entry in self.waiting.queue]
        return needs.index(min(needs))

    def _try(self, entry: Entry) -> bool:
        if self.num_seqs + entry.num_branches > self.scheduler.max_num_seqs:
            return False
        if self.num_left_in_step < (entry.width if entry.on_host else 1):
            self.may_admit = True  # in the next step
            return False
        if not self.pool.has_room(entry, alone=not self.running):
            return False
        num_left = self.pool.admit(entry)
        self.running[entry] = None
        entry.running = True
        self.num_seqs += entry.num_branches
        self._count_admission(entry)
        if num_left:
            self._prefill(entry, num_left)
        else:
            self._decode(entry)
        return True

    def _count_admission(self, entry: Entry) -> None:
        tally = self.tally
        if entry.on_host:
            self.num_free_host_blocks += entry.on_host
            tally.num_swapped_blocks += entry.on_host
            self.num_swapped += entry.prompt + entry.width * entry.num_generated
            self.num_left_in_step -= entry.width
            self.num_prefilled += entry.width
            return
        num_cached = entry.num_computed or 0
        if entry.was_admitted:
            tally.num_recomputed_tokens += max(0, entry.num_lost - num_cached)
        else:
            tally.num_prompt_tokens += entry.prompt
            tally.num_cached_tokens += num_cached
            entry.was_admitted = True

    def _continue_prefill(self, entry: Entry) -> None:
        num_tokens = min(self.num_left, self.num_left_in_step)
        if self.pool.num_blocks_to_prefill(entry, num_tokens, self.num_left) > self.pool.free:
            self._preempt(self.running.popitem()[0])
        else:
            self._prefill(entry, self.num_left)

    def _prefill(self, entry: Entry, num_left: int) -> None:
        num_tokens = min(num_left, self.num_left_in_step)
        self.pool.prefill(entry, num_tokens, num_left)
        self.num_left_in_step -= num_tokens
        self.num_prefilled += num_tokens
        self.num_left = num_left - num_tokens
        self.partial = entry if self.num_left else None
        if not self.num_left:
            self._decode(entry)

    def _decode(self, entry: Entry) -> None:
        self.pool.decode(entry, self.step)
        entry.on_host = 0
        self.new.append(entry)
        self.ends.add(entry.last_step, entry)

    def _make_room(self) -> None:
        if (diverging := self.pool.diverging) is not None:
            diverging.announce(self.step)
        while self.pool.shortage(self.step) > 0:
            self._preempt(self.running.popitem()[0])

    def _preempt(self, victim: Entry) -> None:
        """It was admitted last, and gives way to those before it."""
        is_new, decodes = victim in self.new[-1:], victim.num_computed is None
        if decodes:
            victim.num_generated = victim.base + self.step
        if is_new:
            self.new.pop()
        if victim is self.partial:
            self.partial = None
        context = victim.prompt + victim.num_generated
        victim.num_lost = context + (victim.width - 1) * victim.num_generated if decodes else victim.num_computed or 0
        num_blocks, _ = self.pool.release(victim, context, is_new=is_new)
        self._leave(victim)
        if not self.running:  # it had the pool for itself
            self.tally.num_rejected += 1
            return
        self.tally.num_preemptions += 1
        self.waiting.queue.appendleft(victim)
        swaps = self.scheduler.preemption == "swap" and decodes and not is_new
        if swaps and num_blocks <= self.num_free_host_blocks:
            self.pool.swap_out(victim, num_blocks)
            self.num_free_host_blocks -= num_blocks
            self.tally.num_swapped_blocks += num_blocks
            self.num_swapped += victim.num_lost

    def _leave(self, entry: Entry) -> None:
        entry.running = False
        self.num_seqs -= entry.num_branches
        self.may_admit = True

    def _grow(self) -> None:
        """The tokens of this step, in which as many run as there is room for."""
        pool, tally = self.pool, self.tally
        num_decoding, num_idle = pool.growing, 0
        for entry in self.new:
            num_decoding -= entry.width if entry.final else 0
            num_idle += 0 if entry.final else entry.width
        pool.grow(self.step)
        self.may_admit |= pool.has_freed
        for entry in self.new:
            self.may_admit |= pool.commit(entry)
        if self.partial is not None:
            self.may_admit |= pool.commit(self.partial)
            num_idle += self.partial.width
        pool.observe(tally)
        tally.count(1, pool.growing, pool.growing + num_idle, len(self.running))
        self.clock.step(self.num_prefilled + num_decoding, pool.reads, self.num_swapped)

    def _end(self) -> None:
        self.clock.first_tokens(self.new)
        for entry in self.ends.pop(self.step):
            if entry.running and entry.num_computed is None and entry.last_step == self.step:
                self.pool.release(entry, entry.prompt + entry.final, is_new=False)
                del self.running[entry]
                self._leave(entry)
                self.tally.end(entry)
                self.clock.last_token(entry)

    def _glide(self) -> None:
        """Take the steps in which nothing but growth happens together."""
        pool = self.pool
        if not pool.can_glide or self.partial is not None or not self.running:
            return
        if self.may_admit and self.waiting.queue:
            return
        until = self.ends.next_step
        if pool.diverging is not None:
            until = min(until, pool.diverging.forks.next_step)
        if self.clock.step_time is not None:
            most = pool.num_steps_with_room(self.step, until)
            arrival_ms = self.waiting.next_arrival_ms()
            until = self.step + self.clock.steps(most, pool.growing, pool.reads, arrival_ms)
        num_steps = pool.glide(self.step, until, self.tally)
        self.tally.count(num_steps, pool.growing, pool.growing, len(self.running))
        self.step += num_steps
