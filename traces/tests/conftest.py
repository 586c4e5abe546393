"""Two small allocators of the contract's shape to replay through, and the real traces where they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

REAL_TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"


@pytest.fixture
def real_trace():
    """Path of a real trace by name; skips where it is not there."""

    def find(name: str) -> Path:
        path = REAL_TRACES / name
        if not path.exists():
            pytest.skip(f"the real trace {name} is not beside the checkout, in ../shared/traces")
        return path

    return find


class Paged:
    """Blocks on demand; forks share them, the first append to a shared block copies it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.owners: Counter[int] = Counter()
        self.tables: dict = {}
        self.tokens: dict = {}
        self.log: list = []

    def allocate(self, seq, tokens, key=()):
        if seq in self.tables:
            raise KeyError(seq)
        self.tables[seq] = self.take(-(-len(tokens) // self.block_size))
        self.tokens[seq] = list(tokens)
        self.log.append(("allocate", seq, len(tokens)))
        return 0

    def append(self, seq, tokens):
        table, history = self.tables[seq], self.tokens[seq]
        copies = []
        has_room = len(history) % self.block_size != 0
        shared = has_room and self.owners[table[-1]] > 1
        num_new = -(-(len(history) + len(tokens)) // self.block_size) - len(table)
        new = self.take(num_new + shared)
        if shared:
            copies = [(table[-1], new[0])]
            self.owners[table[-1]] -= 1
            table[-1] = new.pop(0)
        table += new
        history += tokens
        self.log.append(("append", seq, len(tokens)))
        return copies

    def fork(self, parent, child):
        if child in self.tables:
            raise KeyError(child)
        self.tables[child], self.tokens[child] = list(self.tables[parent]), list(self.tokens[parent])
        self.owners.update(self.tables[child])
        self.log.append(("fork", parent, child))
        return []

    def free(self, seq):
        for block in self.tables.pop(seq):
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free_blocks.append(block)
        del self.tokens[seq]
        self.log.append(("free", seq))

    def block_table(self, seq):
        return list(self.tables[seq])

    def num_free_blocks(self):
        return len(self.free_blocks)

    def can_allocate(self, num_tokens):
        return -(-num_tokens // self.block_size) <= len(self.free_blocks)

    def take(self, count):
        if count > len(self.free_blocks):
            raise MemoryError(f"{count} blocks wanted, {len(self.free_blocks)} free")
        taken = [self.free_blocks.pop(0) for _ in range(count)]
        self.owners.update(taken)
        return taken


class Stepped(Paged):
    """Takes a whole decode batch in one call: all rows or none."""

    def append_step(self, seqs, tokens):
        before = self.__dict__.copy() | {
            "free_blocks": list(self.free_blocks),
            "owners": self.owners.copy(),
            "tables": {seq: list(table) for seq, table in self.tables.items()},
            "tokens": {seq: list(tokens) for seq, tokens in self.tokens.items()},
            "log": list(self.log),
        }
        try:
            copies = [self.append(seq, [token]) for seq, token in zip(seqs, tokens.tolist(), strict=True)]
        except MemoryError:
            self.__dict__.update(before)
            raise
        self.log[len(before["log"]) :] = [("append_step", tuple(seqs), tuple(tokens.tolist()))]
        return SimpleNamespace(copies=[pair for row in copies for pair in row])


class Leaky(Paged):
    """Every third sequence leaves a block behind."""

    def free(self, seq):
        if seq[0] % 3 == 0:
            self.tables[seq].pop()
        super().free(seq)


class Contiguous(Paged):
    """Reserves ``max_len`` tokens of consecutive blocks for every sequence."""

    fork = property()  # absent: AttributeError, so that hasattr says no

    def __init__(self, num_blocks: int, block_size: int, max_len: int = 240) -> None:
        super().__init__(num_blocks, block_size)
        self.max_len, self.run = max_len, max_len // block_size
        self.places = [list(range(start, start + self.run)) for start in range(0, num_blocks - self.run + 1, self.run)]

    def allocate(self, seq, tokens, key=()):
        if not self.places or len(tokens) > self.max_len:
            raise MemoryError("no place")
        self.tables[seq], self.tokens[seq] = self.places.pop(), list(tokens)
        return 0

    def append(self, seq, tokens):
        if len(self.tokens[seq]) + len(tokens) > self.max_len:
            raise MemoryError("past the reservation")
        self.tokens[seq] += tokens
        return []

    def free(self, seq):
        self.places.append(self.tables.pop(seq))
        del self.tokens[seq]

    def num_free_blocks(self):
        return len(self.places) * self.run

    def can_allocate(self, num_tokens):
        return bool(self.places) and num_tokens <= self.max_len


class PrefixCaching(Paged):
    """Keeps full blocks of committed tokens findable for ever, which is enough to see hits."""

    fork = property()

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.found: set = set()

    def allocate(self, seq, tokens, key=()):
        super().allocate(seq, tokens)
        size = self.block_size
        ends = range(size, len(tokens) + 1, size)
        return size * sum(tuple(tokens[:end]) in self.found for end in ends)

    def commit(self, seq):
        tokens, size = self.tokens[seq], self.block_size
        self.found.update(tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size))


@pytest.fixture
def paged():
    return Paged


@pytest.fixture
def stepped():
    return Stepped


@pytest.fixture
def leaky():
    return Leaky


@pytest.fixture
def contiguous():
    return Contiguous


@pytest.fixture
def prefix_caching():
    return PrefixCaching
