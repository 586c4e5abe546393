"""How requests come to run in the twin: queue, room, prefix look-up, prefill, swapping in."""

from __future__ import annotations

from simulation_twin.blocks import num_distinct


class Admitting:
    """The half of the twin up to the step."""

    def arrive(self):
        lookahead = 1 if self.scheduler.admission == "stop" else self.scheduler.lookahead
        while self.coming and len(self.queue) < lookahead:
            if self.step_ms and self.coming[0].request.arrival_ms > self.now:
                return
            group = self.coming.pop(0)
            num_blocks = -(-(group.prompt + group.final) // self.size)
            if num_blocks <= self.pool.num_blocks and group.most <= self.scheduler.max_num_seqs:
                self.queue.append(group)
            else:
                self.got["num_rejected"] += 1

    def admit(self):
        rule, place = self.scheduler.admission, 0
        while place < len(self.queue):
            if rule == "smallest":
                place = min(range(len(self.queue)), key=lambda i: self.num_needed(self.queue[i]))
            group = self.queue[place]
            if self.fits(group):
                self.queue.remove(group)
                self.start_one(group)
                self.arrive()
                place = place if rule == "skip" else 0
            elif rule == "skip":
                place += 1
            else:
                return

    def fits(self, group):
        num_seqs = sum(other.most for other in self.running) + group.most
        if num_seqs > self.scheduler.max_num_seqs or self.budget < (len(group.branches) if group.host else 1):
            return False
        return self.blocks.num_free() - self.num_needed(group) >= (self.spare if self.running else 0)

    def num_needed(self, group):
        """Blocks that would leave the free ones, by trying it on a table of the right shape."""
        if group.host:
            return num_distinct(group.host)
        num_blocks = -(-group.prompt // self.size)
        if group.generated:
            shared = group.prompt // self.size
            num_blocks = shared + len(group.branches) * (-(-group.context // self.size) - shared)
        return num_blocks - sum(block in self.blocks.owners for block in self.hits(group))

    def keys(self, group):
        """Of the complete blocks of the prompt, and of what it generated while it was alone."""
        request, per_block = group.request, max(1, self.size // group.request.hash_block_size)
        keys = []
        for place in range(group.context // self.size):
            in_prompt = (place + 1) * self.size <= group.prompt
            if in_prompt and request.hash_ids:
                first = place * self.size // request.hash_block_size
                keys.append(("ids", request.hash_ids[: first + per_block], place, request.priority))
            elif in_prompt or len(group.branches) == 1:
                keys.append(("own", group.index, place))
        return keys

    def hits(self, group):
        if not self.pool.prefix_cache:
            return []
        context = group.context if len(group.branches) == 1 else group.prompt
        found = []
        for key in self.keys(group)[: (context - 1) // self.size]:
            if key not in self.blocks.block_of:
                break
            found.append(self.blocks.block_of[key])
        return found

    def start_one(self, group):
        self.running.append(group)
        if group.host:
            self.swap_in(group)
            return
        hits = self.hits(group)
        for block in hits:
            self.blocks.own(block)
        group.tables, group.computed, group.num_published = {0: hits}, len(hits) * self.size, len(hits)
        if group.was_admitted:
            self.got["num_recomputed_tokens"] += max(0, group.lost - group.computed)
        else:
            self.got["num_prompt_tokens"] += group.prompt
            self.got["num_cached_tokens"] += group.computed
        group.was_admitted = True
        self.go_on(group)

    def all_tokens(self, group):
        """Distinct ones: branches that have generated have a copy each of the prompt's tail."""
        if not group.generated:
            return group.prompt
        shared = group.prompt // self.size * self.size
        return shared + len(group.branches) * (group.context - shared)

    def go_on(self, group):
        """Prefill as far as the budget goes."""
        everything = self.all_tokens(group)
        num_tokens = min(self.budget, everything - group.computed)
        done = group.computed + num_tokens
        is_last, table = done == everything, group.tables[0]
        until = done if len(group.branches) == 1 else min(done, group.prompt)
        if is_last:
            until = group.context
        others = self.copied_blocks(group) if is_last else 0
        if -(-until // self.size) - len(table) + others > self.blocks.num_free():
            self.preempt()
            return
        self.extend(table, until)
        group.computed, self.partial = done, group
        self.budget -= num_tokens
        if is_last:
            self.branch(group)
            group.computed, self.partial, group.is_new = None, None, True

    def copied_blocks(self, group):
        shared = group.prompt // self.size
        return (len(group.branches) - 1) * (-(-group.context // self.size) - shared) if group.generated else 0

    def extend(self, table, num_tokens):
        while len(table) * self.size < num_tokens:
            table.append(self.blocks.take())
        self.fill(table, num_tokens)

    def fill(self, table, num_tokens):
        for place, block in enumerate(table):
            if block is not None:
                self.blocks.fill[block] = max(self.blocks.fill[block], min(self.size, num_tokens - place * self.size))

    def branch(self, group):
        """Every branch shares the prompt; what was generated before is appended to each."""
        first = group.tables[0]
        num_shared = group.prompt // self.size if group.generated else len(first)
        for branch in group.branches[1:]:
            table = group.tables[branch] = first[:num_shared]
            for block in table:
                self.blocks.own(block)
            self.extend(table, group.context)

    def swap_in(self, group):
        moved = {}
        for branch, table in group.host.items():
            for block in table:
                if block in moved:
                    self.blocks.own(moved[block])
                elif block is not None:
                    moved[block] = self.blocks.take()
            group.tables[branch] = [moved.get(block) for block in table]
            self.fill(group.tables[branch], group.context)
        self.free_host += len(moved)
        self.got["num_swapped_blocks"] += len(moved)
        self.budget -= len(group.branches)
        group.host, group.computed, group.is_new = None, None, True
        group.num_published = 0
