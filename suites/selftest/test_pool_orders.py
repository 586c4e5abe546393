"""Pools are made in the storage order that a kernel declares, and seen in the contract's."""

from types import SimpleNamespace

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.pages import empty_pools, lay_out

SPEC = AttentionSpec(num_q_heads=6, num_kv_heads=3, head_dim=5, block_size=4, dtype="float32")


def pools_of(**declared: object) -> list[torch.Tensor]:
    pages = lay_out(Case(((9, 1),), block_size=4, num_kv_heads=3), torch.Generator())
    pools = empty_pools(pages, SPEC, SimpleNamespace(**declared), "cpu")
    return [pools.key, pools.value]


@pytest.mark.parametrize(
    ("declared", "key_strides", "value_strides"),
    [
        ({}, (15, 5, 1), (15, 5, 1)),
        ({"pool_order": "NHD"}, (15, 5, 1), (15, 5, 1)),
        ({"pool_order": "HND"}, (5, 20, 1), (5, 20, 1)),
        ({"pool_order": ("HDN", "HND")}, (1, 20, 4), (5, 20, 1)),
    ],
)
def test_a_block_lies_in_the_order_that_was_declared(declared, key_strides, value_strides):
    key, value = pools_of(**declared)
    assert key.shape[1:] == value.shape[1:] == (4, 3, 5)
    assert key.stride() == (60, *key_strides)
    assert value.stride() == (60, *value_strides)
