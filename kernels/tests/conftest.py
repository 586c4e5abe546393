"""Small paged batches whose unowned bytes are poison, and dense float64 attention with a bound on what may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import PagedAttention

# Unit roundoff and smallest subnormal. The interpreter truncates stores to bfloat16, hence one bit less for the output.
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
OUTPUT_UNIT = {**UNIT, torch.bfloat16: 2.0**-7}
SUBNORMAL = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}


@dataclass
class Case:
    query: Tensor
    key_pool: Tensor
    value_pool: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    query_lens: list[int]
    scale: float

    @property
    def geometry(self) -> Geometry:
        _, block_size, num_kv_heads, head_dim = self.key_pool.shape
        dims = (self.query.shape[1], num_kv_heads, head_dim, self.value_pool.shape[3], block_size)
        return Geometry(*dims, self.query.dtype, self.key_pool.dtype, self.scale)

    def plan(self, *, geometry: Geometry | None = None, **options: Any) -> PagedAttention:
        lens = (self.context_lens.tolist(), self.query_lens)
        return PagedAttention(geometry or self.geometry, self.block_tables, *lens, **options)

    def run(self, **options: Any) -> tuple[Tensor, Tensor]:
        """Output and LSE of our kernel; ``options`` of ``plan.PagedAttention``."""
        return self.plan(**options)(self.query, self.key_pool, self.value_pool)


def draw(
    context_lens: list[int],
    query_lens: list[int] | None = None,
    *,
    group_size: int = 2,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    value_dim: int | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.float16,
    poison: float = math.nan,
    padding_id: int = 2**30,
    order: str = "NHD",
    seed: int = 0,
) -> Case:
    """Random contexts, laid through shuffled blocks; every byte that no sequence owns holds ``poison``.

    Block 0 is nobody's: masked look-ups must not fall back on it.
    """
    random = torch.Generator().manual_seed(seed)
    query_lens = [1] * len(context_lens) if query_lens is None else query_lens
    needed = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(needed) + 3
    free = (torch.randperm(num_blocks - 1, generator=random) + 1).tolist()
    tables = torch.full((len(needed), max(needed, default=0) + 2), padding_id, dtype=torch.int32)
    pools, dense = [], []
    for dim in (head_dim, value_dim or head_dim):
        if order == "NHD":
            pool = torch.full((num_blocks, block_size, num_kv_heads, dim), poison, dtype=dtype)
        else:
            pool = torch.full((num_blocks, num_kv_heads, block_size, dim), poison, dtype=dtype).transpose(1, 2)
        pools.append(pool)
        dense.append([torch.randn(n, num_kv_heads, dim, generator=random).to(dtype) for n in context_lens])
    taken = iter(free)
    for i, blocks in enumerate(needed):
        tables[i, :blocks] = torch.tensor([next(taken) for _ in range(blocks)], dtype=torch.int32)
        for pool, rows in zip(pools, dense, strict=True):
            for t, row in enumerate(rows[i]):
                pool[tables[i, t // block_size], t % block_size] = row
    query = torch.randn(sum(query_lens), num_kv_heads * group_size, head_dim, generator=random).to(dtype)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    lens = torch.tensor(context_lens, dtype=torch.int32)
    return Case(query, *pools, tables, lens, starts, *dense, query_lens, head_dim**-0.5)


def attend(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output and LSE in float64, and how far each may be off.

    The bound adds up worst cases, to first order, of: rounding the output (u_O), rounding P before P·V (u_P), summing n
    terms in float32 (n·u each for P·V and l), and scores that are off by a = u·(D·Σ|q_d k_d|·scale + 4(|s| + |m|) + 4).
    """
    parts = [_attend_one(case, i) for i in range(len(case.query_lens))]
    out, lse, out_bound, lse_bound = (torch.cat(part) for part in zip(*parts, strict=True))
    return out, lse, out_bound, lse_bound


def _attend_one(case: Case, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = case.query[case.query_start[i] : case.query_start[i + 1]].double().transpose(0, 1)  # [heads, rows, dim]
    group = q.shape[0] // case.keys[i].shape[1]
    k, v = (rows[i].double().transpose(0, 1).repeat_interleave(group, 0) for rows in (case.keys, case.values))
    n, rows, u = k.shape[1], q.shape[1], UNIT[torch.float32]
    positions = n - rows + torch.arange(rows)
    hidden = torch.arange(n)[None, :] > positions[:, None]
    s = (q @ k.mT * case.scale).masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.softmax(s, -1).nan_to_num()  # a row without keys is NaN to torch, 0 to us
    out, weight = p @ v, p @ v.abs()

    sums = (q.abs() @ k.mT.abs() * case.scale).masked_fill(hidden, 0)
    finite = s.masked_fill(hidden, 0).abs()
    largest = finite.amax(-1, keepdim=True) if n else finite.sum(-1, keepdim=True)
    a = u * (q.shape[-1] * sums + 4 * (finite + largest) + 4)
    worst = a.amax(-1, keepdim=True) if n else largest
    dtype = case.query.dtype
    p_unit = u if dtype == torch.bfloat16 else UNIT[dtype]  # widened in the interpreter
    p_loss = SUBNORMAL[dtype] / 2 * (~hidden).double() @ v.abs()
    out_bound = OUTPUT_UNIT[dtype] * out.abs() + SUBNORMAL[dtype]
    out_bound = out_bound + (p_unit + 2 * (n + 4) * u + 2 * worst) * weight + p_loss
    lse_bound = worst[..., 0] + u * (2 * lse.abs().nan_to_num(posinf=0) + n + 4)
    return out.transpose(0, 1), lse.T, out_bound.transpose(0, 1), lse_bound.T


def assert_attends(case: Case, out: Tensor, lse: Tensor) -> None:
    """``out`` and ``lse`` are those of dense attention, within the bound."""
    want, want_lse, out_bound, lse_bound = attend(case)
    excess = (out.double() - want).abs() - out_bound
    assert not out.isnan().any(), f"NaN at {out.isnan().nonzero()[0].tolist()}"
    assert excess.max() <= 0, f"out is off by {float(excess.max()):.3g} more than rounding explains"
    empty = want_lse == -math.inf
    assert torch.equal(lse == -math.inf, empty)
    assert torch.all(out[empty] == 0)
    lse_excess = ((lse.double() - want_lse).abs() - lse_bound)[~empty]
    assert lse_excess.numel() == 0 or lse_excess.max() <= 0, f"lse is off by {float(lse_excess.max()):.3g} too much"


@pytest.fixture(scope="session")
def paged():
    """``paged.draw(context_lens, ...)`` gives a case, ``paged.assert_attends(case, out, lse)`` judges a result."""
    return SimpleNamespace(draw=draw, attend=attend, assert_attends=assert_attends)


@pytest.fixture
def triton_cache(tmp_path, monkeypatch):
    """An empty cache: what is compiled here is compiled now."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
