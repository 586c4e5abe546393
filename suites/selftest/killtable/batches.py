"""Data as public tests of attention kernels have it: N(0, 1) in bfloat16, usual lengths, finite noise elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.cases import Case, decode
from kvproof_suites.kernel.oracle import Attended, attend_dense, sees
from kvproof_suites.kernel.pages import Pages, lay_out

SHAPE = {"num_kv_heads": 2, "group_size": 4, "head_dim": 128, "block_size": 16, "dtype": "bfloat16"}

BATCHES: dict[str, Case] = {
    "mixed": Case(((1328, 1), (18, 5), (463, 129)), **SHAPE),
    "decode": Case(decode(523, 37, 2011), **SHAPE),
    "2,011": Case(decode(2011, 2011), **SHAPE),
    "8,195": Case(decode(8195, 8195), **SHAPE),
}
"""The first two are the lengths of vLLM's own kernel tests; the other two show what length does."""

OPTIONS: dict[str, dict[str, float | bool]] = {
    "window": {"window": 256},
    "softcap": {"softcap": 50.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
}
"""What such tests set, by the feature that a kernel must declare for it."""


@dataclass(frozen=True)
class Batch:
    case: Case
    pages: Pages
    query: torch.Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    keys: torch.Tensor
    """[num_slots, num_kv_heads, head_dim]; slots that nobody owns hold noise of the same kind"""
    values: torch.Tensor

    @property
    def spec(self) -> AttentionSpec:
        return self.case.spec

    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(query, keys, values) of each sequence, in order of position."""
        queries = self.query.split(list(self.pages.query_lens))
        slots = [self.pages.slots(row) for row in range(len(self.pages.tables))]
        return [(query, self.keys[at], self.values[at]) for query, at in zip(queries, slots, strict=True)]

    def wanted(self, rounding: Arithmetic) -> Attended:
        """Of the whole batch, in float64, with the budget of ``rounding``."""
        parts = [attend_dense(*row, self.spec, rounding) for row in self.rows()]
        fields = ("out", "lse", "out_bound", "lse_bound")
        return Attended(*(torch.cat([getattr(part, name) for part in parts]) for name in fields))

    @cached_property
    def low(self) -> torch.Tensor:
        """The same attention with every intermediate rounded to bfloat16."""
        return torch.cat([low_precision(*row, self.spec) for row in self.rows()]).double()


def draw(case: Case, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pages, spec = lay_out(case, generator), case.spec

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    query = normal(pages.num_query_tokens, spec.num_q_heads, spec.head_dim)
    keys, values = (normal(pages.num_slots, spec.num_kv_heads, spec.head_dim) for _ in range(2))
    return Batch(case, pages, query, keys, values)


def with_options(features: frozenset[str]) -> list[tuple[str, Case]]:
    """(name, case) of every batch with each option that ``features`` declare."""
    return [
        (name, replace(case, **OPTIONS[feature]))
        for feature in sorted(features & set(OPTIONS))
        for name, case in BATCHES.items()
    ]


def low_precision(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """One sequence: query [num_queries, num_q_heads, head_dim]; scaling K in place of the scores, as FlashAttention's
    tests do, so that its errors are not those of the kernel under test."""
    of_head = torch.arange(spec.num_q_heads) // spec.group_size
    scores = torch.einsum("qhd,khd->hqk", query, (keys * spec.scale_value)[:, of_head])
    if spec.softcap is not None:
        scores = (scores / spec.softcap).tanh() * spec.softcap
    num_queries, context = scores.shape[1:]
    distance = torch.arange(context)[None] - torch.arange(context - num_queries, context)[:, None]
    if spec.alibi_slopes is not None:
        scores = scores + torch.tensor(spec.alibi_slopes, dtype=scores.dtype)[:, None, None] * distance
    scores = scores.masked_fill(~sees(distance, spec), -math.inf)
    if spec.sinks is not None:
        sinks = torch.tensor(spec.sinks, dtype=scores.dtype)[:, None, None].expand(-1, num_queries, 1)
        scores = torch.cat([scores, sinks], dim=2)
    return torch.einsum("hqk,khd->qhd", scores.softmax(2)[..., :context], values[:, of_head])
