"""Random data for the laws that compare runs or need the error budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_suites.kernel.attend import Output, arithmetic, place
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.clusters import clusters
from kvproof_suites.kernel.oracle import Attended, attend_dense
from kvproof_suites.kernel.pages import Pages, lay_out, locate
from kvproof_suites.kernel.scales import Scales, codes, draw_scales
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
    """[num_slots, num_kv_heads, head_dim], as stored; what no sequence owns is 0"""
    values: torch.Tensor
    """The same; of latent attention a view of the keys."""
    scales: Scales | None = None
    """None: the spec's ``k_scale`` and ``v_scale``."""

    def history(self, row: int) -> tuple[torch.Tensor, ...]:
        """Keys, values and their scales, if any, of sequence ``row`` in order of position."""
        slots = torch.tensor(self.pages.slots(row), dtype=torch.long)
        own = self.scales and self.scales.at(slots)
        return (self.keys[slots], self.values[slots], *((own.key, own.value) if own else ()))

    def moved(self, pages: Pages, source: torch.Tensor) -> Drawn:
        """On ``pages``, every slot of which holds what ``source`` [num_slots] of these held."""
        own = self.scales and self.scales.at(source)
        return replace(self, pages=pages, keys=self.keys[source], values=self.values[source], scales=own)


def draw(case: Case, generator: torch.Generator, kind: str = "normal") -> Drawn:
    """Normal data rounded to the case's format, so that every computation starts from the same numbers."""
    pages, spec = lay_out(case, generator), case.spec
    dtype = getattr(torch, spec.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    query = (KINDS[kind] * normal(pages.num_query_tokens, spec.num_q_heads, spec.head_dim)).to(dtype)
    keys = codes(normal(pages.num_slots, spec.num_kv_heads, spec.head_dim), spec)
    values = codes(normal(pages.num_slots, spec.num_kv_heads, spec.value_dim_value), spec)
    values = keys[..., : spec.value_dim_value] if spec.mla else values
    unowned = pages.unowned_slots()
    keys[unowned], values[unowned] = 0, 0
    return Drawn(pages, spec, query, keys, values, draw_scales(pages, spec, generator))


def place_drawn(under_test: KernelUnderTest, drawn: Drawn) -> KVPools:
    """Pools in the kernel's own storage that hold what was drawn."""
    return place(under_test, drawn.spec, drawn.pages, drawn.keys, drawn.values, drawn.scales)


def answers(drawn: Drawn, under_test: KernelUnderTest) -> list[Attended]:
    """What each row must give, from its own history in order of position, and the budget of the declared arithmetic."""
    rounding, found, start = arithmetic(under_test, drawn.spec), [], 0
    for row, query_len in enumerate(drawn.pages.query_lens):
        query = drawn.query[start : start + query_len]
        keys, values, *scales = drawn.history(row)
        found.append(attend_dense(query, keys, values, drawn.spec, rounding, *scales))
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
