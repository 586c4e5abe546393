"""F2, Q2: an 8-bit pool holds the nearest code of each number, and scales go with their codes. G15: in any strides."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import Case, by_tier
from kvproof_suites.kernel.pages import by_block, lay_out
from kvproof_suites.kernel.scales import LARGEST_CODE, with_strided_scales
from kvproof_suites.kernel.test_cache_write import (
    QUANTISED,
    QUANTISED_FULL,
    bits,
    prepare_write,
    random_pools,
    require_writer,
)
from kvproof_suites.kernel.written_codes import OF_A_SCALE, half_codes, require_near, row_scales, write
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(QUANTISED, QUANTISED_FULL))
def test_what_is_written_becomes_the_nearest_code_and_of_two_the_even_one(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    generator, pages, pools = prepare_write(kernel, case, seed)
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


A_TOKEN_EACH = tuple(case for case in QUANTISED if case.kv_scales == "token")
A_TOKEN_EACH_FULL = tuple(case for case in QUANTISED_FULL if case.kv_scales == "token")


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(A_TOKEN_EACH, A_TOKEN_EACH_FULL))
def test_a_row_has_the_scale_that_makes_its_largest_magnitude_127(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    """Rows of every size, and of nothing but zeros."""
    generator, pages, pools = prepare_write(kernel, case, seed)
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
