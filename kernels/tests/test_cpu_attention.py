"""The compiled CPU kernel against dense float64 attention, and what must not change a bit of it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

pytest.importorskip("numba")

from kvproof_kernels.cpu import PagedAttention
from kvproof_kernels.cpu.layout import MAX_SPLIT_QUERY, SPLIT

FORMATS = [torch.float32, torch.float16, torch.bfloat16]


def plan(case, **options):
    _, num_q_heads, head_dim = case.query.shape
    _, block_size, num_kv_heads, value_dim = case.value_pool.shape
    return PagedAttention(
        case.block_tables,
        case.context_lens.tolist(),
        case.query_lens,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        block_size=block_size,
        **{"scale": case.scale, **options},
    )


def attend(case, out=None, **options):
    return plan(case, **options)(case.query, case.key_pool, case.value_pool, out)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    "query_lens",
    [[1, 1, 1, 1], [5, 33, 40, 0], [1, 7, 1, 0], [9, 1, 2, 3]],
    ids=["decode", "prefill", "mixed", "more rows than context"],
)
def test_it_attends_to_contexts_of_any_length(paged, dtype, query_lens):
    case = paged.draw([5, 33, 300, 0], query_lens, dtype=dtype)
    paged.assert_attends(case, *attend(case))


@pytest.mark.parametrize("head_dim", [64, 80, 33])
def test_bfloat16_is_attended_to_on_a_cpu_that_cannot_multiply_pairs_of_it(paged, head_dim, monkeypatch):
    monkeypatch.setattr("kvproof_kernels.cpu.formats.CAN_MULTIPLY_PAIRS", False)
    case = paged.draw([5, 33, 600], [1, 3, 40], head_dim=head_dim, dtype=torch.bfloat16)
    paged.assert_attends(case, *attend(case))


def test_a_plan_may_be_launched_on_queries_of_another_type(paged):
    """Its scratch then holds what the other left behind, here NaN where a row of the next one is padded."""
    case = paged.draw([40, 9], head_dim=33, dtype=torch.bfloat16)
    launch = plan(case)
    query = torch.full(case.query.shape, torch.nan)
    launch(query, case.key_pool.float(), case.value_pool.float())
    paged.assert_attends(case, *launch(case.query, case.key_pool, case.value_pool))


@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 5, 8, 40])
def test_every_group_size_reads_its_own_head(paged, group_size):
    case = paged.draw([5, 70], [1, 3], group_size=group_size, dtype=torch.float32)
    paged.assert_attends(case, *attend(case))


@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 72), (33, 17), (1, 1), (256, 256), (16, 130)])
@pytest.mark.parametrize("dtype", FORMATS)
def test_dims_need_not_fill_a_vector(paged, head_dim, value_dim, dtype):
    case = paged.draw([5, 70], head_dim=head_dim, value_dim=value_dim, dtype=dtype)
    paged.assert_attends(case, *attend(case))


@pytest.mark.parametrize("block_size", [1, 3, 16, 100, 256])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_blocks_are_of_any_size_and_order(paged, block_size, order):
    case = paged.draw([5, 300], [1, 20], block_size=block_size, order=order, dtype=torch.float32)
    paged.assert_attends(case, *attend(case))


@pytest.mark.parametrize("context_len", [SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 5])
@pytest.mark.parametrize("query_len", [1, 3, MAX_SPLIT_QUERY, MAX_SPLIT_QUERY + 1])
def test_parts_of_a_long_context_are_merged(paged, context_len, query_len):
    case = paged.draw([context_len, 3], [query_len, 1], dtype=torch.float32, num_kv_heads=1, head_dim=16)
    paged.assert_attends(case, *attend(case))


@pytest.mark.parametrize("target", [0, SPLIT + 2])
def test_a_part_with_far_lower_scores_adds_nothing_to_the_merge(paged, target):
    """One key of the first part, or of the second, is far above all others: its value is the answer."""
    case = paged.draw([SPLIT + 4], dtype=torch.float32, group_size=1, num_kv_heads=1, head_dim=16, block_size=SPLIT + 4)
    block = case.block_tables[0, 0]
    case.query.fill_(1)
    case.key_pool[block] = 0
    case.key_pool[block, target] = 1e30
    out, _ = attend(case)
    assert torch.equal(out[0, 0], case.value_pool[block, target, 0])


@pytest.mark.parametrize("context_len", [5, 2 * SPLIT])
def test_a_row_whose_scores_are_all_minus_infinity_is_empty(paged, context_len):
    case = paged.draw([context_len], dtype=torch.float32, num_kv_heads=1, head_dim=16)
    case.query.fill_(1)
    case.key_pool.fill_(-torch.inf)
    out, lse = attend(case)
    assert torch.count_nonzero(out) == 0
    assert torch.all(lse == -torch.inf)


def test_neighbours_and_the_number_of_threads_change_no_bit(paged, monkeypatch):
    case = paged.draw([2 * SPLIT + 5, 40, 7], [1, 20, 1], group_size=3, num_kv_heads=4)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr("kvproof_kernels.cpu.attention.num_threads", lambda threads=threads: threads)
        results.append(attend(case))
    alone = replace(
        case,
        query=case.query[:1],
        block_tables=case.block_tables[:1],
        context_lens=case.context_lens[:1],
        query_lens=[1],
    )
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])
    assert torch.equal(attend(alone)[0], results[0][0][:1])


def test_two_callers_may_launch_at_once(paged):
    case = paged.draw([900, 40], [1, 20])
    want, _ = attend(case)
    plans, outs = [plan(case) for _ in range(4)], {}

    def repeat(index):
        outs[index] = [plans[index](case.query, case.key_pool, case.value_pool)[0] for _ in range(20)]

    callers = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=30)
    assert all(torch.equal(out, want) for repeated in outs.values() for out in repeated)
    assert len(outs) == 4


def test_a_plan_runs_again_on_new_contents(paged):
    case, other = paged.draw([40, 9], seed=0), paged.draw([40, 9], seed=1)
    launch = plan(case)
    launch(case.query, case.key_pool, case.value_pool)
    case.block_tables.copy_(other.block_tables)
    paged.assert_attends(other, *launch(other.query, other.key_pool, other.value_pool))


@pytest.mark.parametrize("bad_id", [-1, 2**30])
def test_a_table_entry_outside_the_pool_is_refused(paged, bad_id):
    case = paged.draw([40, 40])
    case.block_tables[1, 2] = bad_id
    with pytest.raises(ValueError, match="a block of sequence 1, within its context of 40 tokens, is outside the pool"):
        attend(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_stored_number_is_widened_exactly(dtype):
    """One token a sequence: the output is its value. Every bit pattern that is not NaN or infinity stands in V."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    values = bits.where(bits.isfinite(), 0).view(256, 1, 1, 256)
    tables = torch.arange(256, dtype=torch.int32)[:, None]
    sizes = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 16, "value_dim": 256, "block_size": 1}
    launch = PagedAttention(tables, [1] * 256, [1] * 256, scale=1.0, **sizes)
    out, _ = launch(torch.zeros(256, 1, 16), torch.zeros(256, 1, 1, 16, dtype=dtype), values)
    assert torch.equal(out.flatten(), values.float().flatten())


@pytest.mark.parametrize("dtype", FORMATS)
def test_it_writes_into_a_given_output_of_any_strides(paged, dtype):
    case = paged.draw([40, 9], dtype=dtype)
    want, _ = attend(case)
    out = torch.full((2, 64, 4), 7.0, dtype=dtype).transpose(1, 2)
    assert attend(case, out)[0] is out
    assert torch.equal(out, want)
