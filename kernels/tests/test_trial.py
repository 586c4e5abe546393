"""A trial passes what gives attention, and names what does not, whichever tile it is."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import PagedAttention
from kvproof_kernels.tiles import rows_kind, tile_for
from kvproof_kernels.trial import Trial, Workload, attend_row

GEOMETRY = Geometry(8, 2, 64, 64, 16, torch.float16, torch.float16, 64**-0.5)
MLA = Geometry(16, 1, 576, 512, 16, torch.float16, torch.float16, 576**-0.5, mla=True)
DECODE = Workload(3, 1, 601)
CHUNK = Workload(2, 20, 75)


def trial(geometry=GEOMETRY, workload=DECODE):
    return Trial(geometry, workload, torch.device("cpu"), num_turns=2, seed=0)


def chosen(geometry=GEOMETRY, workload=DECODE, **changed):
    kind = rows_kind(workload.query_len * geometry.group_size)
    return replace(tile_for(kind, geometry.form, "interpreter"), **changed)


@pytest.mark.parametrize("workload", [DECODE, CHUNK], ids=str)
@pytest.mark.parametrize(
    "geometry",
    [
        pytest.param(GEOMETRY, id="float16"),
        pytest.param(replace(GEOMETRY, dtype=torch.float32, kv_dtype=torch.float32), id="float32"),
        pytest.param(replace(GEOMETRY, kv_dtype=torch.float8_e4m3fn), id="e4m3"),
        pytest.param(replace(GEOMETRY, kv_dtype=torch.int8), id="int8"),
        pytest.param(replace(GEOMETRY, num_kv_heads=8, block_size=48), id="group of 1"),
        pytest.param(MLA, id="mla"),
    ],
)
def test_what_gives_attention_has_no_fault(geometry, workload):
    assert trial(geometry, workload).fault(chosen(geometry, workload)) is None


@pytest.mark.parametrize("block_n", [16, 32, 256])
def test_another_order_of_rounding_is_no_fault(block_n):
    assert trial().fault(chosen(block_n=block_n)) is None


def one_token_early(out, lse, plan):
    return out.roll(1, 0), lse


def one_percent_large(out, lse, plan):
    return out * 1.01, lse


def base_two(out, lse, plan):
    return out, lse / math.log(2)


def leaked(out, lse, plan):
    return torch.where(torch.arange(out.shape[-1]) == 3, math.nan, out.float()).half(), lse


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (one_token_early, r"needles are missed; row 0, head 0 should have found token \d+ of 601"),
        (one_percent_large, "needles are missed"),
        (base_two, r"row 0 is .* times further from float64 than rounding explains"),
        (leaked, "needles are missed"),
    ],
)
def test_a_wrong_result_is_a_fault(monkeypatch, wrong, told):
    right = PagedAttention.__call__
    monkeypatch.setattr(PagedAttention, "__call__", lambda self, *given: wrong(*right(self, *given), self))
    found = trial().fault(chosen())
    assert found is not None
    assert re.search(told, found), found


def test_random_queries_see_what_the_needle_does_not(monkeypatch):
    """Weights of the other tokens that are off do not touch a needle."""
    right = PagedAttention.__call__

    def colder(self, query, *pools):
        return right(self, query * 1.02, *pools)

    monkeypatch.setattr(PagedAttention, "__call__", colder)
    found = trial().fault(chosen())
    assert found is not None
    assert "further from float64" in found


def test_the_turns_share_no_block_and_own_all_of_them():
    tables = trial().tables
    assert sorted(tables.flatten().tolist()) == list(range(tables.numel()))


def test_slots_behind_the_context_are_poison():
    drawn = trial()
    last = drawn.tables[0, 0, -1]
    used = DECODE.context_len % GEOMETRY.block_size
    for pool in (drawn.key_pool, drawn.value_pool):
        assert pool[last, used:].isnan().all()
        assert not pool[last, :used].isnan().any()


def test_an_option_that_would_blur_the_needle_is_refused():
    with pytest.raises(ValueError, match="plain attention"):
        trial(replace(GEOMETRY, softcap=30.0))


def test_the_bound_holds_for_one_row_by_hand():
    """Two tokens with equal scores: the mean of their values, and ln 2."""
    query, keys = torch.zeros(1, 64).half(), torch.ones(2, 1, 64).half()
    values = torch.tensor([1.0, 3.0]).view(2, 1, 1).expand(2, 1, 64).half()
    want = attend_row(query, keys, values, 0.125, torch.float16)
    assert torch.all(want.out == 2.0)
    assert want.lse.item() == pytest.approx(math.log(2))
    assert 0 < want.out_bound.max() < 2 * 2.0**-10 + 1e-5
