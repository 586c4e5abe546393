"""FlexAttention over pages: which pages a block of queries sees, and one compilation for batches of any size."""

import shutil

import pytest
import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.torch_flex import FlexKernel
from kvproof_impls.torch_flex_blocks import QUERY_BLOCK, make_blocks, padded_places, padded_to_power, visible

FIRST = torch.arange(4) * 4
"""First positions of four pages of four tokens."""


def make_spec(**options):
    return AttentionSpec(**{"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4} | options)


@pytest.mark.parametrize(
    ("options", "queries", "seen", "whole"),
    [
        ({}, (9, 10), [1, 1, 1, 0], [1, 1, 0, 0]),
        ({}, (11, 12), [1, 1, 1, 0], [1, 1, 1, 0]),
        ({}, (3, 14), [1, 1, 1, 1], [1, 0, 0, 0]),
        ({"window": 4}, (9, 10), [0, 1, 1, 0], [0, 0, 0, 0]),
        ({"window": 8}, (11, 12), [0, 1, 1, 0], [0, 1, 1, 0]),
        ({"window": 9}, (11, 12), [1, 1, 1, 0], [0, 1, 1, 0]),
        ({"window": 5}, (7, 9), [1, 1, 1, 0], [0, 1, 0, 0]),
        ({"causal": False}, (0, 2), [1, 1, 1, 1], [1, 1, 1, 0]),
    ],
)
def test_a_page_is_seen_by_some_queries_and_whole_where_all_see_all_of_it(options, queries, seen, whole):
    got = visible(make_spec(**options), FIRST, *queries, context_len=14)
    assert [part.int().tolist() for part in got] == [seen, whole]


def test_the_mask_names_physical_pages_and_where_they_stand(paged):
    spec = make_spec()
    batch = paged.case(spec, [9, 4], [1, 1]).batch
    blocks = make_blocks(spec, batch, 8, 2, 1)
    first, second, third = batch.block_tables[0, :3].tolist()
    assert blocks.full_pages[0, 0, :2].tolist() == [first, second]
    assert blocks.pages[0, 0, :1].tolist() == [third]
    assert blocks.counts[:, 0].tolist() == [1, 0]
    assert blocks.full_counts[:, 0].tolist() == [2, 1]
    places = blocks.logical[:16].view(2, 8)
    assert [int(places[0, page]) for page in (first, second, third)] == [0, 1, 2]
    assert (places >= 0).sum() == 4


def test_a_sequence_of_many_queries_has_a_row_of_the_mask_for_each_block_of_them(paged):
    spec, length = make_spec(), 2 * QUERY_BLOCK + 3
    batch = paged.case(spec, [length], [length]).batch
    blocks = make_blocks(spec, batch, 70, 2, length)
    assert (blocks.counts + blocks.full_counts)[0].tolist() == [QUERY_BLOCK // 4, QUERY_BLOCK // 2, -(-length // 4)]


def test_queries_are_padded_to_the_longest(paged):
    batch = paged.case(make_spec(), [5, 3], [3, 2]).batch
    assert padded_places(batch, 3).tolist() == [0, 1, 2, 3, 4]
    assert padded_places(paged.case(make_spec(), [5, 3], [1, 2]).batch, 2).tolist() == [0, 2, 3]


@pytest.mark.parametrize(("length", "padded"), [(1, 4096), (4096, 4096), (4097, 65536)])
def test_what_the_mask_looks_up_has_few_sizes(length, padded):
    assert len(padded_to_power(torch.ones(1), length)) == padded


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"kv_dtype": "float8_e4m3fn"}, "one type on a CPU"),
        ({"k_scale": 0.5}, "scales"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(paged, options, reason):
    spec = make_spec(**options)
    assert reason in FlexKernel().unsupported(spec)
    with pytest.raises(ValueError, match=reason):
        FlexKernel().plan(spec, paged.case(make_spec(), [5], [1]).batch)


def test_pools_with_gaps_are_refused_before_anything_is_compiled(paged):
    case = paged.case(make_spec(), [5], [1])
    wide = torch.zeros(len(case.pools.key), 7, 2, 8, dtype=torch.float16)[:, :4]
    with pytest.raises(ValueError, match="key pool has strides"):
        FlexKernel().plan(case.spec, case.batch)(case.query, KVPools(wide, case.pools.value))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler, which inductor calls")
def test_batches_of_any_size_share_one_compilation_and_give_dense_attention(paged):
    from torch._dynamo.utils import counters

    spec, before = make_spec(dtype="float32"), counters["stats"]["unique_graphs"]
    for context_lens, query_lens in (([5, 9], [3, 2]), ([17], [17]), ([1, 30, 6, 2], [1, 5, 1, 2])):
        case = paged.case(spec, context_lens, query_lens, poison=0.0)
        got = FlexKernel().plan(spec, case.batch)(case.query, case.pools)
        # exp_u20 of the template is good to 20 units in the last place.
        assert (got.double() - paged.expected(case)[0]).abs().max() <= 4e-6
    assert counters["stats"]["unique_graphs"] - before == 1
