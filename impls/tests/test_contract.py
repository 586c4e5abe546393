"""The contract refuses impossible shapes by name, and fills in what a spec leaves open."""

import math

import pytest
import torch

from kvproof_impls import DEFAULT_ARITHMETIC, FEATURES, PagedKernel, from_function
from kvproof_impls.contract import AttentionSpec, BlockAllocator, PagedBatch

SHAPE = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 16}


@pytest.mark.parametrize("field", sorted(SHAPE))
def test_a_size_below_one_is_refused_by_name(field):
    with pytest.raises(ValueError, match=f"AttentionSpec.{field} must be at least 1, got 0"):
        AttentionSpec(**SHAPE | {field: 0})


def test_query_heads_that_do_not_divide_into_groups_are_refused():
    with pytest.raises(ValueError, match=r"num_q_heads \(7\) must be a multiple of num_kv_heads \(2\)"):
        AttentionSpec(**SHAPE | {"num_q_heads": 7})


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 4, "causal": False}])
def test_a_window_needs_a_key_and_a_causal_mask(options):
    with pytest.raises(ValueError, match=r"AttentionSpec\.window"):
        AttentionSpec(**SHAPE, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_scales": "block"}, "one of tensor, head, token"),
        ({"kv_scales": "head", "k_scale": 0.5}, r"k_scale and v_scale must be 1 with kv_scales='head'"),
        ({"mla": True, "value_dim": 80}, r"value_dim \(80\) exceeds head_dim \(64\) with mla"),
        ({"mla": True, "k_scale": 0.5}, r"k_scale \(0.5\) and v_scale \(1.0\) must agree with mla"),
    ],
)
def test_scales_and_value_dims_that_contradict_one_another_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionSpec(**SHAPE, **options)


def test_what_a_spec_leaves_open_has_the_usual_value():
    spec = AttentionSpec(**SHAPE)
    assert spec.group_size == 4
    assert math.isclose(spec.scale_value, 1 / 8)
    assert spec.value_dim_value == 64


def test_what_a_spec_gives_is_kept_even_when_it_is_zero():
    spec = AttentionSpec(**SHAPE, scale=0.0, value_dim=32)
    assert spec.scale_value == 0.0
    assert spec.value_dim_value == 32


def test_equal_specs_hash_equally_so_that_cases_can_be_grouped():
    assert len({AttentionSpec(**SHAPE), AttentionSpec(**SHAPE), AttentionSpec(**SHAPE, window=4)}) == 2


def make_batch(context_lens, query_lens):
    return PagedBatch(
        block_tables=torch.zeros(len(context_lens), 1, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        query_start=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        slot_mapping=torch.full((sum(query_lens),), -1),
        context_lens_host=tuple(context_lens),
        query_lens_host=tuple(query_lens),
    )


def test_a_batch_counts_its_sequences_rows_and_longest_members():
    batch = make_batch([5, 9, 2], [1, 4, 2])
    counted = (batch.num_seqs, batch.num_tokens, batch.max_query_len, batch.max_context_len)
    assert counted == (3, 7, 4, 9)


def test_an_empty_batch_has_lengths_of_zero():
    batch = make_batch([], [])
    assert (batch.num_seqs, batch.num_tokens, batch.max_query_len, batch.max_context_len) == (0, 0, 0, 0)


def test_the_protocols_are_recognised_by_their_methods_alone():
    assert isinstance(from_function(lambda *args, **options: None), PagedKernel)
    assert not isinstance(object(), PagedKernel)
    assert not isinstance(from_function(lambda *args, **options: None), BlockAllocator)


def test_every_built_in_kernel_declares_known_features_and_known_arithmetic(built_in_kernel):
    assert set(built_in_kernel.features) <= set(FEATURES)
    assert set(built_in_kernel.arithmetic(AttentionSpec(**SHAPE))) <= set(DEFAULT_ARITHMETIC)
