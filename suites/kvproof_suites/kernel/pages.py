"""Where the tokens of a case lie in the pool: owned slots, tails, free blocks and the null block.

This is the suite's own truth. The step tensors are made from it, and never read back to find out what is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch, PagedKernel
from kvproof_suites.kernel.cases import Case

NULL_BLOCK = 0
NUM_FREE_BLOCKS = 3
"""Blocks that nobody owns, one of them past the last owned id when blocks are laid in order."""


@dataclass(frozen=True)
class Pages:
    """Sequences laid out in blocks.

    A *row* is a sequence of the batch. Several rows may read the same blocks (``tables`` repeats): sharing is legal,
    and lets one pool serve a query for every position.
    """

    block_size: int
    num_blocks: int
    tables: tuple[tuple[int, ...], ...]
    """Physical blocks of each row."""
    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    repeats: tuple[int, ...] | None = None
    """The sequence of the case that each row stands for, where rows are repeated."""

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def num_query_tokens(self) -> int:
        return sum(self.query_lens)

    def sequence(self, row: int) -> int:
        """Its number in the case, which is what a reader knows."""
        return row if self.repeats is None else self.repeats[row]

    def slot(self, row: int, position: int) -> int:
        block = self.tables[row][position // self.block_size]
        return block * self.block_size + position % self.block_size

    def slots(self, row: int) -> list[int]:
        return [self.slot(row, position) for position in range(self.context_lens[row])]

    def query_positions(self, row: int) -> range:
        """The query rows are the last positions of the context; negative where the context is shorter."""
        return range(self.context_lens[row] - self.query_lens[row], self.context_lens[row])

    def owners(self) -> dict[int, tuple[int, int]]:
        """Slot to (row, position), for every slot that holds a token; the first row names a shared block."""
        found: dict[int, tuple[int, int]] = {}
        for row in {table: row for row, table in reversed(list(enumerate(self.tables)))}.values():
            for position, slot in enumerate(self.slots(row)):
                found.setdefault(slot, (row, position))
        return found

    def shared_slots(self) -> set[int]:
        """Slots that hold a token of more than one sequence."""
        times = Counter(slot for row in range(len(self.tables)) for slot in self.slots(row))
        return {slot for slot, count in times.items() if count > 1}

    def unowned_slots(self) -> list[int]:
        owned = self.owners()
        return [slot for slot in range(self.num_slots) if slot not in owned]

    def tail_slots(self) -> set[int]:
        """Unowned slots inside a block that holds tokens: what a kernel meets past the end of the context."""
        owned = self.owners()
        blocks = {slot // self.block_size for slot in owned}
        return {slot for slot in self.unowned_slots() if slot // self.block_size in blocks}

    def describe(self, slot: int) -> str:
        block, offset = divmod(slot, self.block_size)
        place = f"physical block {block} slot {offset}"
        if slot in (owned := self.owners()):
            row, position = owned[slot]
            return f"{place}, which belongs to sequence {self.sequence(row)} position {position}"
        if block == NULL_BLOCK:
            return f"{place}, in the null block"
        if slot in self.tail_slots():
            return f"{place}, past the end of the context in a partly filled block"
        return f"{place}, in a block that nobody owns"


def lay_out(case: Case, generator: torch.Generator, churned: Sequence[int] = ()) -> Pages:
    """Give the sequences of ``case`` blocks in the case's layout, the first ``case.shared_blocks`` to all of them.
    Block 0 is the null block and stays unowned."""
    num_blocks = num_pool_blocks(case)
    order = physical_order(case.layout, num_blocks, generator, churned)
    shared, order, tables = order[: case.shared_blocks], order[case.shared_blocks :], []
    for count in blocks_needed(case):
        num_own = max(0, count - case.shared_blocks)
        tables.append(tuple(shared[:count] + order[:num_own]))
        order = order[num_own:]
    context_lens, query_lens = zip(*case.seqs, strict=True)
    return Pages(case.block_size, num_blocks, tuple(tables), context_lens, query_lens)


def blocks_needed(case: Case) -> list[int]:
    """By each sequence, the shared ones included."""
    return [-(-context_len // case.block_size) for context_len, _ in case.seqs]


def num_pool_blocks(case: Case) -> int:
    own = sum(max(0, count - case.shared_blocks) for count in blocks_needed(case))
    return 1 + case.shared_blocks + own + NUM_FREE_BLOCKS


def physical_order(layout: str, num_blocks: int, generator: torch.Generator, churned: Sequence[int]) -> list[int]:
    """The blocks after the null block, in the order in which sequences receive them."""
    blocks = list(range(1, num_blocks))
    if layout == "identity":
        return blocks
    if layout == "reversed":
        return blocks[::-1]
    if layout == "churned":
        rank = {block: i for i, block in enumerate(churned)}
        return sorted(blocks, key=lambda block: rank.get(block, len(rank) + block))
    return [blocks[i] for i in torch.randperm(len(blocks), generator=generator).tolist()]


def repeat_rows(pages: Pages, copies: Sequence[int]) -> Pages:
    """Row i of ``pages`` ``copies[i]`` times, all of them reading the same blocks."""
    rows = [row for row, count in enumerate(copies) for _ in range(count)]
    return replace(
        pages,
        tables=tuple(pages.tables[row] for row in rows),
        context_lens=tuple(pages.context_lens[row] for row in rows),
        query_lens=tuple(pages.query_lens[row] for row in rows),
        repeats=tuple(map(pages.sequence, rows)),
    )


def empty_pools(pages: Pages, spec: AttentionSpec, kernel: PagedKernel, device: str, fill: float = 0.0) -> KVPools:
    """Pools in the kernel's storage order, seen as [num_blocks, block_size, num_kv_heads, head_dim or value_dim]."""
    orders, value_dim = pool_orders(kernel), spec.value_dim_value
    key = pool(pages, spec, spec.head_dim, orders[0], device, fill)
    return KVPools(key, key[..., :value_dim] if spec.mla else pool(pages, spec, value_dim, orders[1], device, fill))


def pool(pages: Pages, spec: AttentionSpec, dim: int, order: str, device: str, fill: float) -> torch.Tensor:
    shape = (pages.num_blocks, pages.block_size, spec.num_kv_heads, dim)
    return untouched_pool(shape, order, spec.kv_dtype or spec.dtype, device).fill_(fill)


def pool_orders(kernel: PagedKernel) -> tuple[str, str]:
    """Storage order of the keys and of the values."""
    order: str | tuple[str, str] = getattr(kernel, "pool_order", "NHD")
    return (order, order) if isinstance(order, str) else order


def untouched_pool(shape: tuple[int, int, int, int], order: str, dtype: str, device: str = "cpu") -> torch.Tensor:
    """Unwritten memory in a storage order of the contract, seen as [num_blocks, block_size, num_kv_heads, dim]."""
    stored = [0, *("NHD".index(axis) + 1 for axis in order)]
    memory = torch.empty([shape[axis] for axis in stored], dtype=getattr(torch, dtype), device=device)
    return memory.permute([stored.index(axis) for axis in range(4)])


def fill_pool(target: torch.Tensor, by_slot: torch.Tensor) -> None:
    """Write ``by_slot`` [num_slots, num_kv_heads, dim] through the view ``target``, whatever its storage order."""
    target.copy_(by_slot.view(target.shape[0], target.shape[1], *by_slot.shape[1:]))


def by_slot(target: torch.Tensor) -> torch.Tensor:
    """[num_slots, num_kv_heads, dim] of the view ``target``; a copy where the storage order asks for one."""
    return target.reshape(-1, *target.shape[2:])


def by_block(pools: KVPools) -> dict[str, torch.Tensor]:
    """What of ``pools`` lies in blocks, [num_blocks, block_size, num_kv_heads, ...] each: keys, values, and scales a
    token; of latent attention the values are a part of the keys."""
    latent = pools.value.data_ptr() == pools.key.data_ptr()
    parts = {"key": pools.key} if latent else {"key": pools.key, "value": pools.value}
    scales = (
        {"key scale": pools.key_scale} if latent else {"key scale": pools.key_scale, "value scale": pools.value_scale}
    )
    return parts | {name: scale for name, scale in scales.items() if scale is not None and scale.dim() > 1}


def step_tensors(
    pages: Pages, device: str, padding: int = NULL_BLOCK, extra_width: int = 2, common_prefix_blocks: int = 0
) -> PagedBatch:
    """The step tensors of ``pages``; table entries past a row's last block hold ``padding``."""
    width = max((len(table) for table in pages.tables), default=0) + extra_width
    tables = torch.full((len(pages.tables), width), padding, dtype=torch.int32)
    slot_mapping: list[int] = []
    for row, table in enumerate(pages.tables):
        tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
        slot_mapping += [pages.slot(row, p) if p >= 0 else -1 for p in pages.query_positions(row)]
    starts = [0]
    for query_len in pages.query_lens:
        starts.append(starts[-1] + query_len)
    return PagedBatch(
        block_tables=tables.to(device),
        context_lens=torch.tensor(pages.context_lens, dtype=torch.int32, device=device),
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        slot_mapping=torch.tensor(slot_mapping, dtype=torch.int64, device=device),
        context_lens_host=pages.context_lens,
        query_lens_host=pages.query_lens,
        common_prefix_blocks=common_prefix_blocks,
    )


def locate(pages: Pages, token: int) -> tuple[int, int]:
    """(row, index within the row's queries) of query token ``token``."""
    for row, query_len in enumerate(pages.query_lens):
        if token < query_len:
            return row, token
        token -= query_len
    raise IndexError(f"no query token {token}")
