"""One attention step that several kernels take side by side: its shape, its contents, and what must come out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import DEFAULT_ARITHMETIC, AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.bench.timing import pinned_threads
from kvproof_suites.kernel.oracle import attend_dense
from kvproof_suites.kernel.pages import Pages

JUDGED_ROWS = 32
"""Query rows that are held against float64: all of a decode step, a sample of a prompt's."""


@dataclass(frozen=True)
class Step:
    """A batch of sequences of one length; the queries are the last ``query_len`` positions of each."""

    batch: int
    query_len: int
    context_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.num_q_heads, self.num_kv_heads, self.head_dim, self.block_size, self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def num_tokens(self) -> int:
        """Query rows in all."""
        return self.batch * self.query_len

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all contexts, once."""
        return 2 * self.batch * self.context_len * self.num_kv_heads * self.head_dim * self.torch_dtype.itemsize


@dataclass(frozen=True)
class Contents:
    """Random, the same for every block size."""

    query: Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    keys: Tensor
    """[batch, context_len, num_kv_heads, head_dim]"""
    values: Tensor


def draw(step: Step, seed: int = 0) -> Contents:
    return _drawn(replace(step, block_size=1), seed)


@functools.lru_cache(maxsize=1)
def _drawn(step: Step, seed: int) -> Contents:
    generator = torch.Generator().manual_seed(seed)
    shape = (step.batch, step.context_len, step.num_kv_heads, step.head_dim)
    sizes = [(step.num_tokens, step.num_q_heads, step.head_dim), shape, shape]
    return Contents(*(torch.randn(*size, generator=generator).to(step.torch_dtype) for size in sizes))


def lay_out(step: Step, seed: int = 0) -> Pages:
    """Blocks in random order, every one of them owned."""
    width = -(-step.context_len // step.block_size)
    order = torch.randperm(step.batch * width, generator=torch.Generator().manual_seed(seed)).view(step.batch, width)
    tables = tuple(tuple(row) for row in order.tolist())
    lens = ((step.context_len,) * step.batch, (step.query_len,) * step.batch)
    return Pages(step.block_size, step.batch * width, tables, *lens)


def block_tables(pages: Pages) -> Tensor:
    """[batch, blocks of a context] int32"""
    return torch.tensor(pages.tables, dtype=torch.int32)


def paged(rows: Tensor, pages: Pages) -> Tensor:
    """Keys or values [batch, context_len, num_kv_heads, head_dim], laid into blocks [num_blocks, block_size, ...]."""
    pool = rows.new_zeros(pages.num_slots, *rows.shape[2:])
    positions = torch.arange(rows.shape[1])
    blocks = block_tables(pages).long()[:, positions // pages.block_size]
    pool[blocks * pages.block_size + positions % pages.block_size] = rows
    return pool.view(pages.num_blocks, pages.block_size, *rows.shape[2:])


@dataclass(frozen=True)
class Expected:
    """Of the rows that are judged."""

    rows: Tensor
    """[judged] places in the output"""
    out: Tensor
    """[judged, num_q_heads, head_dim] float64"""
    bound: Tensor

    def distance(self, output: Tensor) -> float:
        """Of the worst element, in error bounds; at most 1 where attention was computed."""
        off = (output[self.rows].double() - self.out).abs() / self.bound
        return float(off.nan_to_num(nan=torch.inf).max())


def expect(step: Step, declared: Mapping[str, Any] = DEFAULT_ARITHMETIC, seed: int = 0) -> Expected:
    """Attention of the judged rows, each over what it sees, within the error budget of law G1 by the arithmetic that
    the kernel ``declared``: what it doesn't say is the contract's default."""
    arithmetic = Arithmetic.declared(dict(DEFAULT_ARITHMETIC) | dict(declared), step.dtype)
    return _expected(replace(step, block_size=1), arithmetic, seed)


@functools.lru_cache(maxsize=2)
def _expected(step: Step, arithmetic: Arithmetic, seed: int) -> Expected:
    rows = torch.linspace(0, step.num_tokens - 1, min(JUDGED_ROWS, step.num_tokens)).round().long()
    with pinned_threads(1):  # thousands of small operations: more threads would wait for each other
        attended = [attend_row(step, draw(step, seed), arithmetic, row) for row in rows.tolist()]
    return Expected(rows, torch.cat([row.out for row in attended]), torch.cat([row.out_bound for row in attended]))


def attend_row(step: Step, contents: Contents, arithmetic: Arithmetic, row: int) -> Any:
    sequence, index = divmod(row, step.query_len)
    seen = step.context_len - step.query_len + index + 1
    keys, values = (part[sequence, :seen] for part in (contents.keys, contents.values))
    return attend_dense(contents.query[row, None], keys, values, step.spec, arithmetic)
