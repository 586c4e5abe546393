"""Rows written into 8-bit pools: numbers whose code is known, and what then stands in their slots."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.pages import Pages, by_block, by_slot, step_tensors
from kvproof_suites.kernel.scales import LARGEST_CODE, Scales, powers_of_two
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

ROUNDING = 2.0**-16
"""Beyond half a code: the quotient of a number and its scale carries two roundings of float32, below 127·2^-23."""
OF_A_SCALE = 2.0**-22
"""max |row| ÷ 127, by division or by the reciprocal."""


class Written(NamedTuple):
    """Rows that were sent, [num_tokens, num_kv_heads, dim] float32, and what their slots hold, codes and scales."""

    rows: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    """[num_tokens, num_kv_heads]"""
    slots: list[int]


def write(
    under_test: KernelUnderTest, case: Case, pages: Pages, parts: tuple[torch.Tensor, torch.Tensor], pools: KVPools
) -> list[Written]:
    """Write ``parts``, K and V; what then stands in the slots of each part that is stored."""
    slots = step_tensors(pages, "cpu").slot_mapping.tolist()
    sent = [part.to(under_test.device, getattr(torch, case.dtype)) for part in parts]
    mapping = torch.tensor(slots, dtype=torch.int64, device=under_test.device)
    under_test.kernel.write(case.spec, *sent, pools, mapping)
    parts_stored = [
        ("key", sent[0], pools.key_scale, case.k_scale),
        ("value", sent[1], pools.value_scale, case.v_scale),
    ]
    return [
        Written(rows.float().cpu(), by_slot(stored[name])[slots].cpu(), scales_of(rows, own, one, slots), slots)
        for stored in (by_block(pools),)
        for name, rows, own, one in parts_stored
        if name in stored
    ]


def scales_of(rows: torch.Tensor, own: torch.Tensor | None, one: float, slots: list[int]) -> torch.Tensor:
    """[num_tokens, num_kv_heads]: ``one``, or those of ``own``, a head or a slot."""
    if own is None:
        return torch.full(rows.shape[:2], one)
    return (own.expand(rows.shape[:2]) if own.dim() == 1 else by_slot(own)[slots]).cpu()


def magnitudes(kv_dtype: str) -> torch.Tensor:
    """What the codes of an 8-bit type from 0 up stand for, [num_codes] float32, each with the number of its index."""
    if kv_dtype == "int8":
        return torch.arange(LARGEST_CODE + 1).float()
    numbers = torch.arange(128, dtype=torch.uint8).view(getattr(torch, kv_dtype)).float()
    return numbers[numbers.isfinite()]


def half_codes(case: Case, pages: Pages, scales: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Numbers that are codes of ``case``, or lie half way between two, and the code that each becomes, the even one.

    [num_tokens, num_kv_heads, head_dim] both; ``scales`` [num_tokens, num_kv_heads] are powers of two, so that all of
    them are exact in every type that rows come in. The first number of a row is the largest there is.
    """
    grid = magnitudes(case.kv_dtype or case.dtype)
    shape = (pages.num_query_tokens, case.num_kv_heads, case.head_dim)
    index = torch.randint(len(grid) - 1, shape, generator=generator)
    half = torch.randint(2, shape, generator=generator)
    index[..., 0], half[..., 0] = len(grid) - 1, 0
    sign = torch.randint(2, shape, generator=generator) * 2 - 1
    above = grid[(index + 1).clamp(max=len(grid) - 1)]
    numbers = sign * (grid[index] + half * (above - grid[index]) / 2)
    return numbers * scales[..., None], sign * grid[index + half * (index % 2)]


def row_scales(case: Case, pages: Pages, pools: KVPools, generator: torch.Generator) -> Scales:
    """[num_tokens, num_kv_heads]: those given, or powers of two for rows that will have one of their own."""
    slots = torch.arange(pages.num_query_tokens)
    if case.kv_scales == "head" and pools.key_scale is not None and pools.value_scale is not None:
        shape = (len(slots), case.num_kv_heads)
        return Scales(pools.key_scale.cpu().expand(shape), pools.value_scale.cpu().expand(shape))
    return powers_of_two(pages, case.spec, generator).at(slots)


def require_near(written: Written, where: torch.Tensor) -> None:
    """Raise LawBroken where a code is not the nearest to its number ÷ scale, as far as float32 can tell."""
    scales = written.scales.double()[..., None]
    off = (written.codes.double() * scales - written.rows.double()).abs()
    wrong = where & ~(off <= (0.5 + ROUNDING) * scales)
    if wrong.any():
        token, head, dim = wrong.nonzero()[0].tolist()
        raise LawBroken(
            f"{int(wrong.sum())} of {wrong.numel()} numbers do not come back within half a code: row {token}, key head "
            f"{head}, dim {dim} was {written.rows[token, head, dim]:g} and reads "
            f"{written.codes[token, head, dim]:g} times {written.scales[token, head]:g}"
        )
