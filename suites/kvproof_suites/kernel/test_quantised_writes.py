"""F2, Q4, Q2: an 8-bit pool holds the nearest code of each number, within its range, and scales go with their codes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import Case, by_tier
from kvproof_suites.kernel.pages import Pages, by_block, by_slot, lay_out, step_tensors
from kvproof_suites.kernel.scales import LARGEST_CODE, Scales, powers_of_two, with_strided_scales
from kvproof_suites.kernel.test_cache_write import QUANTISED, QUANTISED_FULL, bits, random_pools, require_writer
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


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(QUANTISED, QUANTISED_FULL))
def test_what_is_written_becomes_the_nearest_code_and_of_two_the_even_one(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    own = row_scales(case, pages, pools, generator)
    drawn = [half_codes(case, pages, scales, generator) for scales in (own.key, own.value)]
    sent = (drawn[0][0], drawn[1][0][..., : case.spec.value_dim_value])
    for (_, codes), scales, written in zip(
        drawn, (own.key, own.value), write(kernel, case, pages, sent, pools), strict=False
    ):
        wanted = codes[..., : written.codes.shape[-1]]
        exact = (written.scales == scales)[..., None]  # where a scale was made by the reciprocal nothing is half way
        wrong = exact & (written.codes.float() != wanted)
        require_near(written, ~exact)
        if wrong.any():
            token, head, dim = wrong.nonzero()[0].tolist()
            raise LawBroken(
                f"{int(wrong.sum())} of {wrong.numel()} codes are not the nearest, or not the even one of two.\n"
                f"  first {pages.describe(written.slots[token])}, key head {head}, dim {dim}: "
                f"{written.rows[token, head, dim]:g} with the scale {scales[token, head]:g} must become "
                f"{wanted[token, head, dim]:g}, and is {written.codes[token, head, dim].float():g}"
            )


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


A_TOKEN_EACH = tuple(case for case in QUANTISED if case.kv_scales == "token")
A_TOKEN_EACH_FULL = tuple(case for case in QUANTISED_FULL if case.kv_scales == "token")


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(A_TOKEN_EACH, A_TOKEN_EACH_FULL))
def test_a_row_has_the_scale_that_makes_its_largest_magnitude_127(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    """Rows of every size, and of nothing but zeros."""
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    shape = (pages.num_query_tokens, case.num_kv_heads, case.head_dim)
    sizes = 2.0 ** torch.randint(-6, 6, shape[:2], generator=generator)
    sizes[0] = 0
    parts = torch.randn(2, *shape, generator=generator) * sizes[..., None]
    for written in write(kernel, case, pages, (parts[0], parts[1][..., : case.spec.value_dim_value]), pools):
        wanted = written.rows.double().abs().amax(-1) / LARGEST_CODE
        wrong = (written.scales.double() - wanted).abs() > OF_A_SCALE * wanted
        wrong[0] = ~written.scales[0].isfinite()  # of zeros any scale is as good
        if wrong.any():
            token, head = wrong.nonzero()[0].tolist()
            raise LawBroken(
                f"{int(wrong.sum())} of {wrong.numel()} scales are not max |row| ÷ 127, first of "
                f"{pages.describe(written.slots[token])}, key head {head}: got {written.scales[token, head]:g}, "
                f"want {wanted[token, head]:g}"
            )
        if (written.codes[0].float() * written.scales[0][..., None]).any():
            raise LawBroken("a row of zeros does not read as zeros")
        require_near(written, torch.ones_like(written.codes, dtype=torch.bool))


@pytest.mark.law("Q4")
@pytest.mark.parametrize("rows", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", by_tier([case for case in QUANTISED if case.kv_scales != "token"], ()))
def test_a_write_beyond_the_range_saturates_and_a_nan_stays_in_its_slot(
    kernel: KernelUnderTest, case: Case, rows: str, seed: int
) -> None:
    """Of int8 NaN has no code: what becomes of it is open, but only of it."""
    case = replace(case, dtype=rows)
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    scale = row_scales(case, pages, pools, generator).key[0]
    grid = magnitudes(case.kv_dtype or case.dtype)
    ladder = torch.tensor([0.5, 1.0, 1.01, 2.0, 1e3]) * grid[-1]
    sent = torch.zeros(pages.num_query_tokens, case.num_kv_heads, case.head_dim)
    beyond = (torch.cat([ladder, -ladder]) * scale[:, None]).clamp(*limits(rows))
    sent[0, :, : len(ladder) * 2] = beyond
    sent[1, 0, 0] = torch.nan
    written = write(kernel, case, pages, (sent, torch.zeros_like(sent)), pools)[0]
    reached = written.codes[0, :, : 2 * len(ladder)].float()
    if not (saturated(reached[:, 1:5], grid[-1]) and saturated(-reached[:, 6:], grid[-1], case.kv_dtype == "int8")):
        raise LawBroken(f"values beyond {grid[-1]:g} times their scale must saturate, got {reached.tolist()}")
    lost = written.codes[1, 0, 0].float()
    if case.kv_dtype != "int8" and not lost.isnan():
        raise LawBroken(f"a NaN must stay a NaN in its slot, got {lost:g}")
    others = written.codes.float()
    others[0, :, : 2 * len(ladder)], others[1, 0, 0] = 0, 0
    if not (others == 0).all():
        raise LawBroken(f"zeros beside a NaN were written, and {int((others != 0).sum())} of them are stored otherwise")


def limits(dtype: str) -> tuple[float, float]:
    return torch.finfo(getattr(torch, dtype)).min, torch.finfo(getattr(torch, dtype)).max


def saturated(codes: torch.Tensor, largest: torch.Tensor, one_more: bool = False) -> bool:
    """``one_more``: int8 has a code below -127, which not everyone uses."""
    return bool(((codes == largest) | (one_more & (codes == largest + 1))).all())


@pytest.mark.law("Q4")
@pytest.mark.parametrize("case", by_tier(A_TOKEN_EACH, A_TOKEN_EACH_FULL))
def test_a_row_with_a_nan_has_a_scale_of_nan_and_no_other_row_has(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    """Codes of 8 bits have no NaN, so that it is the scale that tells: whoever reads the row reads NaN."""
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    parts = torch.randn(2, pages.num_query_tokens, case.num_kv_heads, case.head_dim, generator=generator)
    parts[:, 1, 0, 5] = torch.nan
    for written in write(kernel, case, pages, (parts[0], parts[1][..., : case.spec.value_dim_value]), pools):
        sick = torch.zeros_like(written.scales, dtype=torch.bool)
        sick[1, 0] = True
        if not torch.equal(written.scales.isnan(), sick):
            where = written.scales.isnan().nonzero().tolist()
            raise LawBroken(f"of row 1 key head 0 holds a NaN; the scales of (row, head) {where} are NaN")
        require_near(written, ~sick[..., None].expand_as(written.codes))


@pytest.mark.law("Q2")
@pytest.mark.parametrize("case", by_tier(QUANTISED[1:], QUANTISED_FULL))
def test_a_block_copy_takes_the_scales_of_its_tokens_along(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    require_writer(kernel, "copy_blocks")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    blocks = torch.randperm(pages.num_blocks, generator=generator).tolist()
    copies = [(blocks[0], blocks[1]), (blocks[0], blocks[2]), *zip(blocks[3::2], blocks[4::2], strict=False)]
    named = {"key": pools.key, "value": pools.value, "key scale": pools.key_scale, "value scale": pools.value_scale}
    parts = {name: part for name, part in named.items() if part is not None}
    wanted = {name: part.clone() for name, part in parts.items()}
    for part in (part for part in wanted.values() if part.dim() > 1):  # a scale a head belongs to no block
        before = part.clone()
        for source, destination in copies:
            part[destination] = before[source]
    kernel.kernel.copy_blocks(pools, copies)
    for name, part in parts.items():
        if not torch.equal(bits(part), bits(wanted[name])):
            raise LawBroken(f"copying {copies} left the {name} other than it must be")


@pytest.mark.law("G15")
@pytest.mark.parametrize("case", by_tier(A_TOKEN_EACH, ()))
def test_scales_between_others_are_written_in_their_slots_alone_or_rejected(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    packed, other = (random_pools(kernel, case, pages, torch.Generator().manual_seed(seed)) for _ in range(2))
    strided, storage = with_strided_scales(other)
    parts = torch.randn(2, pages.num_query_tokens, case.num_kv_heads, case.head_dim, generator=generator)
    sent = (parts[0], parts[1][..., : case.spec.value_dim_value])
    try:
        write(kernel, case, pages, sent, strided)
    except (ValueError, NotImplementedError):
        return  # rejected, and loudly
    write(kernel, case, pages, sent, packed)
    for name, part in by_block(packed).items():
        if not torch.equal(bits(part), bits(by_block(strided)[name])):
            raise LawBroken(f"the {name} holds something else where scales are not packed")
    if not storage[:, 2:].isnan().all():
        raise LawBroken("what lies between the scales was written")
