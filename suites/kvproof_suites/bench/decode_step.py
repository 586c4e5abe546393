"""One decode step to time: its shape, what fills the pool, and what must come out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.bench.tables import Churned, lay_out_batch, split_rows
from kvproof_suites.bench.timing import pinned_threads
from kvproof_suites.kernel.attend import arithmetic
from kvproof_suites.kernel.oracle import attend_dense
from kvproof_suites.kernel.pages import Pages, empty_pools, fill_pool, step_tensors
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

ROTATED_BYTES = 2**27
"""Keys and values that a round of inputs reads together: more than a cache holds."""


@dataclass(frozen=True)
class Shape:
    """A batch of sequences of one length, one query row each."""

    batch: int
    context_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    def spec(self, block_size: int) -> AttentionSpec:
        return AttentionSpec(self.num_q_heads, self.num_kv_heads, self.head_dim, block_size, self.dtype)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of the live tokens, once."""
        return 2 * self.batch * self.context_len * self.num_kv_heads * self.head_dim * self._itemsize

    def moved_bytes(self, block_size: int | None) -> int:
        """What one launch must move: live K and V once, query and output, and the block tables (None: dense)."""
        rows = 2 * self.batch * self.num_q_heads * self.head_dim * self._itemsize
        table_entries = 0 if block_size is None else self.batch * -(-self.context_len // block_size)
        return self.kv_bytes + rows + 4 * table_entries

    @property
    def num_turns(self) -> int:
        """Batches that take turns, so that each finds the cache full of others."""
        return -(-ROTATED_BYTES // self.kv_bytes)

    @property
    def _itemsize(self) -> int:
        return getattr(torch, self.dtype).itemsize

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def default_shape(device: str) -> Shape:
    """Llama-3-8B's heads; float32 on a CPU, where it is the native type, bfloat16 elsewhere."""
    return Shape(8, 1024, 32, 8, 128, "bfloat16" if device.startswith("cuda") else "float32")


@dataclass(frozen=True)
class Contents:
    """Random data of all turns; rows are the sequences of all turns, one after the other."""

    query: Tensor
    """[num_turns · batch, num_q_heads, head_dim]"""
    keys: Tensor
    """[num_turns · batch, context_len, num_kv_heads, head_dim]"""
    values: Tensor

    def turns(self, batch: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        split = (part.split(batch) for part in (self.query, self.keys, self.values))
        return list(zip(*split, strict=True))


@functools.lru_cache(maxsize=1)
def draw(shape: Shape, device: str, seed: int) -> Contents:
    generator = torch.Generator(device).manual_seed(seed)
    rows, dtype = shape.num_turns * shape.batch, getattr(torch, shape.dtype)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device).to(dtype)

    kv_size = (rows, shape.context_len, shape.num_kv_heads, shape.head_dim)
    return Contents(normal(rows, shape.num_q_heads, shape.head_dim), normal(*kv_size), normal(*kv_size))


@dataclass(frozen=True)
class PagedStep:
    """Every turn's launch, planned, over one pool."""

    pools: KVPools
    turns: Sequence[tuple[Any, Tensor]]
    """(launch, query) of each turn"""
    plan: Callable[[], Any]
    """Plans the first turn once more, to be timed."""

    def run(self, turn: tuple[Any, Tensor]) -> Any:
        launch, query = turn
        return launch(query, self.pools)


def paged_step(
    under_test: KernelUnderTest, shape: Shape, block_size: int, state: str, churned: Churned, seed: int
) -> PagedStep:
    """Lay the contents of all turns through blocks in the given state, and plan."""
    spec, contents = shape.spec(block_size), draw(shape, under_test.device, seed)
    pages = lay_out_batch(state, shape.num_turns * shape.batch, shape.context_len, block_size, churned, seed)
    pools = empty_pools(pages, spec, under_test.kernel, under_test.device)
    for pool, rows in ((pools.key, contents.keys), (pools.value, contents.values)):
        by_slot = rows.new_zeros(pages.num_slots, *rows.shape[2:])
        by_slot[slots(pages).to(rows.device)] = rows
        fill_pool(pool, by_slot)
    batches = [step_tensors(part, under_test.device, extra_width=0) for part in split_rows(pages, shape.num_turns)]
    launches = [under_test.kernel.plan(spec, batch) for batch in batches]
    queries = contents.query.split(shape.batch)
    return PagedStep(pools, list(zip(launches, queries, strict=True)), lambda: under_test.kernel.plan(spec, batches[0]))


def slots(pages: Pages) -> Tensor:
    """[num_rows, context_len] slot of each position, for rows of one length."""
    position = torch.arange(pages.context_lens[0])
    tables = torch.tensor(pages.tables)
    return tables[:, position // pages.block_size] * pages.block_size + position % pages.block_size


def require_dense_result(
    under_test: KernelUnderTest, shape: Shape, block_size: int, seed: int, outputs: Sequence[Tensor]
) -> None:
    """A figure is believed only when what was computed is attention, to within the error budget of law G1.

    Raises:
        LawBroken: an element is further from float64 than the declared arithmetic allows.
    """
    declared = arithmetic(under_test, shape.spec(block_size))
    expected, bound = expect(shape, under_test.device, seed, declared)
    ratio = (torch.cat(list(outputs)).double().cpu() - expected).abs() / bound
    worst = float(ratio.nan_to_num(nan=torch.inf).max())
    if worst > 1:
        where = divmod(int(ratio.nan_to_num(nan=torch.inf).argmax()) // shape.head_dim, shape.num_q_heads)
        raise LawBroken(
            f"not timed: the output is {worst:.3g} times its error bound away from dense attention "
            f"(sequence {where[0]}, query head {where[1]}); run the laws first: they say what was read instead"
        )


@functools.lru_cache(maxsize=4)
def expect(shape: Shape, device: str, seed: int, declared: Arithmetic) -> tuple[Tensor, Tensor]:
    """Output of every row in float64 and its bound, [num_turns · batch, num_q_heads, head_dim]."""
    contents = draw(shape, device, seed)
    with pinned_threads(1):  # thousands of small operations: more threads would wait for each other
        attended = [
            attend_dense(query[None], keys, values, shape.spec(1), declared)
            for query, keys, values in zip(contents.query, contents.keys, contents.values, strict=True)
        ]
    return torch.cat([row.out for row in attended]), torch.cat([row.out_bound for row in attended])
