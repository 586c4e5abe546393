"""A miniature serving engine: the allocator decides where, the kernel reads, and every step is checked.

K and V of a token are a function of its whole prefix, as in a model; so that a block found in the prefix cache holds
what computing it again would give. What a sequence must attend to is kept apart from every table, as its own history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch

from kvproof_impls.contract import AttentionSpec, BlockAllocator, Copies, KVPools, PagedBatch
from kvproof_suites.kernel.attend import arithmetic
from kvproof_suites.kernel.drawn import error_to_bound
from kvproof_suites.kernel.oracle import attend_dense
from kvproof_suites.kernel.pages import pool_orders, untouched_pool
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

UNWRITTEN = 1e4
"""What the pool holds before anything is written: large enough to show in any output that reads it."""


@dataclass
class History:
    tokens: list[int]
    num_computed: int = 0

    @property
    def num_left(self) -> int:
        return len(self.tokens) - self.num_computed


@dataclass
class Engine:
    allocator: BlockAllocator
    under_test: KernelUnderTest
    spec: AttentionSpec
    seed: int
    keep_ratio: Callable[[float], None]
    histories: dict[Hashable, History] = field(default_factory=dict)
    pools: KVPools = field(init=False)

    def __post_init__(self) -> None:
        spec, device = self.spec, self.under_test.device
        shape = (self.allocator.pool_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        views = (untouched_pool(shape, order, spec.dtype, device) for order in pool_orders(self.under_test.kernel))
        self.pools = KVPools(*(view.fill_(UNWRITTEN) for view in views))
        self.generator = torch.Generator().manual_seed(self.seed)

    def admit(self, seq: Hashable, tokens: Sequence[int]) -> None:
        """Allocate; tokens found cached count as computed and are read as they lie."""
        cached = self.allocator.allocate(seq, list(tokens))
        self.histories[seq] = History(list(tokens), cached)

    def append(self, seq: Hashable, tokens: Sequence[int]) -> None:
        self.copy(self.allocator.append(seq, list(tokens)))
        self.histories[seq].tokens += tokens

    def fork(self, parent: Hashable, child: Hashable) -> None:
        self.copy(self.allocator.fork(parent, child))  # type: ignore[attr-defined]
        history = self.histories[parent]
        self.histories[child] = History(list(history.tokens), history.num_computed)

    def free(self, seq: Hashable) -> None:
        self.allocator.free(seq)
        del self.histories[seq]

    def copy(self, copies: Copies) -> None:
        if not copies:
            return
        if hasattr(self.under_test.kernel, "copy_blocks"):
            self.under_test.kernel.copy_blocks(self.pools, copies)
            return
        for source, destination in copies:
            for pool in (self.pools.key, self.pools.value):
                pool[destination] = pool[source]

    def step(self, chunks: dict[Hashable, int]) -> None:
        """Write and attend to the next ``chunks[seq]`` tokens of each sequence, in one batch, and check every row."""
        work = {
            seq: min(n, len(self.histories[seq].tokens) - self.histories[seq].num_computed) for seq, n in chunks.items()
        }
        batch = self.batch(work)
        contents = {seq: self.content(seq) for seq in work}
        self.write(work, contents, batch)
        query = torch.randn(batch.num_tokens, self.spec.num_q_heads, self.spec.head_dim, generator=self.generator)
        query = query.to(self.under_test.device, getattr(torch, self.spec.dtype))
        out = self.under_test.kernel.plan(self.spec, batch)(query, self.pools)
        self.check(work, contents, query, out)
        for seq, count in work.items():
            self.histories[seq].num_computed += count
            if hasattr(self.allocator, "commit") and self.histories[seq].num_computed == len(
                self.histories[seq].tokens
            ):
                self.allocator.commit(seq)

    def run_to_end(self, chunk: int) -> None:
        """Compute what is left of every sequence, ``chunk`` tokens at a time."""
        while left := {seq: chunk for seq, history in self.histories.items() if history.num_left}:
            self.step(left)

    def batch(self, work: dict[Hashable, int]) -> PagedBatch:
        tables = [list(self.allocator.block_table(seq)) for seq in work]
        context_lens = [self.histories[seq].num_computed + count for seq, count in work.items()]
        padded = torch.zeros(len(work), max(map(len, tables)) + 1, dtype=torch.int32)
        for row, table in enumerate(tables):
            padded[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
        slots = [
            self.slot(table, position)
            for table, context_len, count in zip(tables, context_lens, work.values(), strict=True)
            for position in range(context_len - count, context_len)
        ]
        starts = torch.tensor([0, *work.values()]).cumsum(0).to(torch.int32)
        device = self.under_test.device
        return PagedBatch(
            padded.to(device),
            torch.tensor(context_lens, dtype=torch.int32, device=device),
            starts.to(device),
            torch.tensor(slots, dtype=torch.int64, device=device),
            tuple(context_lens),
            tuple(work.values()),
        )

    def slot(self, table: list[int], position: int) -> int:
        logical, offset = divmod(position, self.spec.block_size)
        if logical >= len(table):
            raise LawBroken(f"position {position} has no slot: the block table has {len(table)} blocks")
        return table[logical] * self.spec.block_size + offset

    def content(self, seq: Hashable) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [num_tokens, num_kv_heads, head_dim] of the whole history."""
        digest, rows = hashlib.blake2b(str(self.seed).encode()), []
        for token in self.histories[seq].tokens:
            digest.update(token.to_bytes(8, "little"))
            drawn = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7], "little"))
            rows.append(torch.randn(2, self.spec.num_kv_heads, self.spec.head_dim, generator=drawn))
        keys, values = torch.stack(rows, dim=1).to(getattr(torch, self.spec.dtype))
        return keys, values

    def write(
        self, work: dict[Hashable, int], contents: dict[Hashable, tuple[torch.Tensor, torch.Tensor]], batch: PagedBatch
    ) -> None:
        done = {seq: self.histories[seq].num_computed for seq in work}
        key, value = (
            torch.cat([contents[seq][i][done[seq] : done[seq] + n] for seq, n in work.items()]).to(
                self.under_test.device
            )
            for i in range(2)
        )
        if hasattr(self.under_test.kernel, "write"):
            self.under_test.kernel.write(self.spec, key, value, self.pools, batch.slot_mapping)
            return
        blocks, offsets = batch.slot_mapping // self.spec.block_size, batch.slot_mapping % self.spec.block_size
        self.pools.key[blocks, offsets], self.pools.value[blocks, offsets] = key, value

    def check(
        self,
        work: dict[Hashable, int],
        contents: dict[Hashable, tuple[torch.Tensor, torch.Tensor]],
        query: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        rounding, start = arithmetic(self.under_test, self.spec), 0
        for seq, count in work.items():
            context_len = self.histories[seq].num_computed + count
            keys, values = (part[:context_len] for part in contents[seq])
            want = attend_dense(query[start : start + count], keys, values, self.spec, rounding)
            ratio = error_to_bound(out[start : start + count].double().cpu(), want.out, want.out_bound)
            self.keep_ratio(float(ratio.max()))
            if (ratio > 1).any():
                raise LawBroken(
                    f"sequence {seq!r} with {context_len} tokens does not attend to its own history: "
                    f"error ÷ bound {float(ratio.max()):.3g}\n"
                    f"  its block table: {list(self.allocator.block_table(seq))}"
                )
            start += count
