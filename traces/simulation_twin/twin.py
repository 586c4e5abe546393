"""The twin of the paged simulation: block tables, and everything step by step and token by token."""

from __future__ import annotations

from collections import Counter

from simulation_twin.admitting import Admitting
from simulation_twin.blocks import Blocks, Group, num_distinct


class Twin(Admitting):
    """``run`` gives its counts."""

    def __init__(self, requests, pool, scheduler, step_ms=None):
        self.pool, self.scheduler, self.step_ms, self.size = pool, scheduler, step_ms, pool.block_size
        self.blocks = Blocks(pool.num_blocks)
        self.spare = int(scheduler.watermark * pool.num_blocks)
        self.coming = [Group(*pair) for pair in enumerate(requests)]
        self.queue, self.running, self.partial = [], [], None
        self.now = self.start = requests[0].arrival_ms
        self.free_host, self.got, self.ttft, self.tpot = pool.num_host_blocks, Counter(), [], []

    def run(self):
        while self.coming or self.queue or self.running:
            decoding = sum(len(group.branches) for group in self.running if group.computed is None)
            self.budget = (self.scheduler.token_budget or 10**9) - decoding
            if self.partial:
                self.go_on(self.partial)
            if not self.running and not self.queue and self.step_ms:
                self.now = max(self.now, self.coming[0].request.arrival_ms)
            self.arrive()
            self.admit()
            if self.running:
                self.grow()
                if self.running:
                    self.observe()
                    self.end()
            elif self.queue:
                self.queue.pop(0)
                self.got["num_rejected"] += 1
        return self.got

    # A step.

    def num_wanted(self, group):
        """Blocks for the next token of each branch, before forks give theirs back."""
        if group.computed is not None or not group.final:
            return 0
        due = group.forks_due
        if group.context % self.size == 0:
            return len(group.branches) + len({child for _, _, child in due} - set(group.branches))
        return len(group.branches) - 1 if group.generated == 0 else len(due)

    def grow(self):
        while sum(map(self.num_wanted, self.running)) > self.blocks.num_free():
            self.preempt()
        growing = [group for group in self.running if group.computed is None and group.final]
        for group in growing:
            for _, parent, child in group.forks_due:
                self.fork(group, parent, child)
        for group in growing:
            for table in group.tables.values():
                self.append(table, group.context)
            group.generated += 1
            self.got["num_generated_tokens"] += len(group.branches)

    def fork(self, group, parent, child):
        for block in reversed(group.tables.get(child, [])):
            self.blocks.give_up(block)
        group.tables[child] = list(group.tables[parent])
        for block in group.tables[child]:
            self.blocks.own(block)
        group.num_forks += 1

    def append(self, table, context):
        rest = context % self.size
        if not rest:
            table.append(self.blocks.take())
        elif self.blocks.owners[table[-1]] > 1:
            self.blocks.give_up(table[-1])
            table[-1] = self.blocks.take(rest)
            self.got["num_block_copies"] += 1
        self.blocks.fill[table[-1]] = rest + 1

    def observe(self):
        got, owned = self.got, self.blocks.owners
        for group in self.running:
            self.slide(group)
            if self.pool.prefix_cache:
                self.publish(group)
        tables = [table for group in self.running for table in group.tables.values()]
        num_seqs = sum(len(group.branches) for group in self.running)
        got["num_steps"] += 1
        got["seqs"] += num_seqs
        got["requests"] += len(self.running)
        got["peak_running_seqs"] = max(got["peak_running_seqs"], num_seqs)
        got["peak_running_requests"] = max(got["peak_running_requests"], len(self.running))
        got["blocks"] += len(owned)
        got["tokens"] += sum(self.blocks.fill[block] for block in owned)
        got["saved"] += sum(block is not None for table in tables for block in table) - len(owned)
        self.now += self.step_ms or 0
        for group in self.running:
            if group.first_ms is None and group.generated:
                group.first_ms = self.now
                self.ttft.append(self.now - group.request.arrival_ms)

    def slide(self, group):
        if self.pool.window is not None and group.computed is None:
            for table in group.tables.values():
                for place in range(max(0, group.context - self.pool.window) // self.size):
                    if table[place] is not None:
                        self.blocks.give_up(table[place])
                        table[place] = None

    def publish(self, group):
        """What was completed in this step, once: a duplicate of what is there already never gets a name."""
        num_full = (group.context if group.computed is None else group.computed) // self.size
        if group.computed is not None and len(group.branches) > 1:
            num_full = min(num_full, group.prompt // self.size)
        keys = self.keys(group)
        for branch, table in group.tables.items():
            for place in range(group.num_published, num_full):
                is_own = branch and place >= group.prompt // self.size
                # What several branches generated is found by nobody, not even by them after a preemption.
                of_nobody = ("own", group.index, branch, place, self.got["num_preemptions"])
                key = of_nobody if is_own or place >= len(keys) else keys[place]
                self.blocks.publish(table[place], key)
        group.num_published = num_full

    def end(self):
        for group in list(self.running):
            group.is_new = False
            if group.computed is None and group.generated == group.final:
                self.running.remove(group)
                self.release(group)
                self.got["num_finished" if group.request.abort_after is None else "num_aborted"] += 1
                if group.final > 1:
                    self.tpot.append((self.now - group.first_ms) / (group.final - 1))

    # Giving way.

    def release(self, group):
        for table in group.tables.values():
            for block in reversed(table):
                if block is not None:
                    self.blocks.give_up(block)
        group.tables = {}

    def preempt(self):
        group = self.running.pop()
        decodes, is_new = group.computed is None, group.is_new
        group.lost = group.prompt + len(group.branches) * group.generated if decodes else group.computed
        host = group.tables
        self.release(group)
        self.partial = None if group is self.partial else self.partial
        group.is_new = False
        if not self.running:
            self.got["num_rejected"] += 1
            return
        self.got["num_preemptions"] += 1
        self.queue.insert(0, group)
        num_blocks = num_distinct(host)
        if self.scheduler.preemption == "swap" and decodes and not is_new and num_blocks <= self.free_host:
            group.host = host
            # What it alone could find is of no use in the pool any more.
            for block in [
                block for block in self.blocks.unowned if self.blocks.key_of[block][:2] == ("own", group.index)
            ]:
                if len(self.blocks.key_of[block]) == 3:
                    self.blocks.forget(block)
            self.free_host -= num_blocks
            self.got["num_swapped_blocks"] += num_blocks
