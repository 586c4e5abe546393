"""Random data for the laws that compare runs or need the error budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.attend import Output, arithmetic
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.clusters import clusters
from kvproof_suites.kernel.oracle import Attended, attend_dense
from kvproof_suites.kernel.pages import Pages, lay_out, locate
from kvproof_suites.outcome import LawBroken, SuiteDefect
from kvproof_suites.repro.evidence import worst
from kvproof_suites.under_test import KernelUnderTest

KINDS: dict[str, float] = {"flat": 0.1, "normal": 1.0, "peaked": 4.0}
"""What the query is multiplied by: nearly equal weights, ordinary ones, a few that outweigh the rest."""


@dataclass(frozen=True)
class Drawn:
    pages: Pages
    spec: AttentionSpec
    query: torch.Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    keys: torch.Tensor
    """[num_slots, num_kv_heads, head_dim]; what no sequence owns is 0"""
    values: torch.Tensor


def draw(case: Case, generator: torch.Generator, kind: str = "normal") -> Drawn:
    """Normal data rounded to the case's format, so that every computation starts from the same numbers."""
    pages, spec = lay_out(case, generator), case.spec
    dtype, kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype or spec.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    query = (KINDS[kind] * normal(pages.num_query_tokens, spec.num_q_heads, spec.head_dim)).to(dtype)
    keys = normal(pages.num_slots, spec.num_kv_heads, spec.head_dim).to(kv_dtype).to(dtype)
    values = normal(pages.num_slots, spec.num_kv_heads, spec.value_dim_value).to(kv_dtype).to(dtype)
    unowned = pages.unowned_slots()
    keys[unowned], values[unowned] = 0, 0
    return Drawn(pages, spec, query, keys, values)


def answers(drawn: Drawn, under_test: KernelUnderTest) -> list[Attended]:
    """What each row must give, from its own history in order of position, and the budget of the declared arithmetic."""
    rounding, found, start = arithmetic(under_test, drawn.spec), [], 0
    for row, query_len in enumerate(drawn.pages.query_lens):
        slots = drawn.pages.slots(row)
        query = drawn.query[start : start + query_len]
        found.append(attend_dense(query, drawn.keys[slots], drawn.values[slots], drawn.spec, rounding))
        start += query_len
    return found


def judge(drawn: Drawn, under_test: KernelUnderTest, output: Output, keep_ratio: Callable[[float], None]) -> None:
    """Raise LawBroken where an element lies outside its bound; hand the worst error ÷ bound to ``keep_ratio``."""
    wanted = answers(drawn, under_test)
    out, lse = output
    parts = [("out", out, torch.cat([a.out for a in wanted]), torch.cat([a.out_bound for a in wanted]))]
    if lse is not None:
        parts.append(("lse", lse, torch.cat([a.lse for a in wanted]), torch.cat([a.lse_bound for a in wanted])))
    for name, got, want, bound in parts:
        if want.isnan().any():
            raise SuiteDefect(f"the oracle has no {name} for this case: its inputs are not finite")
        ratio = error_to_bound(got.double().cpu(), want, bound)
        keep_ratio(float(ratio.max()) if ratio.numel() else 0.0)
        if (ratio > 1).any():
            told = explain(drawn, name, got.double().cpu(), want, bound, ratio)
            where = clusters(drawn.pages, (ratio > 1).flatten(2).any(2) if ratio.dim() > 2 else ratio > 1)
            raise LawBroken(f"{told}\n{where}", worst(name, got, want, bound))


def error_to_bound(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Elementwise; equal elements (infinities of an empty row included) give 0, a NaN gives infinity."""
    ratio = (got - want).abs() / bound
    return torch.where(got == want, 0.0, ratio.nan_to_num(nan=torch.inf, posinf=torch.inf))


def explain(
    drawn: Drawn, name: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor, ratio: torch.Tensor
) -> str:
    worst = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    row, index = locate(drawn.pages, worst[0])
    position = drawn.pages.query_positions(row)[index]
    rows_hit = sorted({locate(drawn.pages, int(token))[0] for token in (ratio > 1).nonzero()[:, 0].unique()})
    return (
        f"{int((ratio > 1).sum())} of {ratio.numel()} elements of {name} lie outside their bound, "
        f"in sequences {rows_hit} of {len(drawn.pages.tables)}.\n"
        f"  worst: {name}{list(worst)} (sequence {row}, query position {position}, context "
        f"{drawn.pages.context_lens[row]}, {len(drawn.pages.tables[row])} blocks)\n"
        f"  got {got[worst]:.8g}, want {want[worst]:.8g}, bound {bound[worst]:.3g}, "
        f"error ÷ bound {ratio[worst]:.3g}"
    )
