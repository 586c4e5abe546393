"""Numbered blocks, and requests with block tables: what the twin of the simulation works on."""

from __future__ import annotations

from collections import Counter


class Blocks:
    """Numbered blocks with owners, contents and an order of use."""

    def __init__(self, num_blocks):
        self.owners, self.fill, self.empty = Counter(), {}, list(range(num_blocks))
        self.key_of, self.block_of, self.unowned = {}, {}, {}

    def num_free(self):
        return len(self.empty) + len(self.unowned)

    def take(self, fill=0):
        if not self.empty:
            self.forget(next(iter(self.unowned)))
        block = self.empty.pop()
        self.owners[block], self.fill[block] = 1, fill
        return block

    def forget(self, block):
        del self.unowned[block], self.block_of[self.key_of.pop(block)]
        self.empty.append(block)

    def own(self, block):
        self.unowned.pop(block, None)
        self.owners[block] += 1

    def give_up(self, block):
        self.owners[block] -= 1
        if not self.owners[block]:
            del self.owners[block]
            if block in self.key_of:
                self.unowned[block] = None
            else:
                self.empty.append(block)

    def publish(self, block, key):
        if key not in self.block_of and block not in self.key_of:
            self.key_of[block], self.block_of[key] = key, block


class Group:
    """A request with a block table for each branch; ``computed`` is None while it decodes."""

    def __init__(self, index, request):
        self.index, self.request, self.final = index, request, request.num_generated_tokens
        self.generated, self.computed, self.lost, self.first_ms = 0, 0, 0, None
        self.tables, self.host = {}, None
        self.num_forks = sum(position == 0 for position, _, _ in request.forks) if self.final else 0
        self.most = len({*range(request.num_samples), *(child for _, _, child in request.forks)})
        self.was_admitted = self.is_new = False

    @property
    def branches(self):
        return sorted({*range(self.request.num_samples), *(c for _, _, c in self.request.forks[: self.num_forks])})

    @property
    def prompt(self):
        return self.request.num_prompt_tokens

    @property
    def context(self):
        return self.prompt + self.generated

    @property
    def forks_due(self):
        left = self.request.forks[self.num_forks :]
        return [fork for fork in left if fork[0] == self.generated] if self.generated < self.final else []


def num_distinct(tables):
    return len({block for table in tables.values() for block in table if block is not None})
