"""What does not fit is refused before anything runs, by a message that names the tensor and its shape."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels import validation
from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.decode import paged_decode
from kvproof_kernels.prefill import paged_prefill


def decode(case, **options):
    return paged_decode(case.query, *case.pools, scale=case.scale, **options)


@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [
        ("query", lambda t: t[0], ValueError, r"query \[4, 64\] must have 3 dims"),
        (
            "query",
            lambda t: t[..., :32],
            ValueError,
            r"query \[2, 4, 32\] has head_dim 32, key_pool \[.*, 64\] another",
        ),
        ("query", lambda t: t[:, :3], ValueError, r"query \[2, 3, 64\] has 3 heads, .* multiple of the 2 key heads"),
        ("query", lambda t: t.float(), TypeError, r"query is torch.float32, key_pool torch.float16"),
        ("query", lambda t: t[:1], ValueError, r"block_tables \[2, \d+\] must be \[1, \d+\]"),
        ("query", lambda t: t.mT.contiguous().mT, ValueError, r"query \[2, 4, 64\] has last stride 4; it must be 1"),
        ("key_pool", lambda t: t[0], ValueError, r"key_pool \[16, 2, 64\] must have 4 dims"),
        ("key_pool", lambda t: t[:0], ValueError, r"key_pool \[0, 16, 2, 64\] is empty"),
        ("key_pool", lambda t: t[..., :40], ValueError, r"key_pool .* has head_dim 40; it must be a multiple of 16"),
        ("key_pool", lambda t: t.double(), TypeError, r"key_pool is torch.float64; the kernels take torch.float16"),
        ("value_pool", lambda t: t[:-1], ValueError, r"key_pool .* and value_pool .* must agree"),
        ("value_pool", lambda t: t.bfloat16(), TypeError, r"value_pool is torch.bfloat16, key_pool torch.float16"),
        ("block_tables", lambda t: t.long(), TypeError, r"block_tables \[2, \d+\] is torch.int64; .* torch.int32"),
        ("block_tables", lambda t: t[:1], ValueError, r"block_tables \[1, \d+\] must be \[2, \d+\]"),
        ("context_lens", lambda t: t[:1], ValueError, r"context_lens \[1\] must be \[2\]"),
        ("context_lens", lambda t: t.long(), TypeError, r"context_lens \[2\] is torch.int64; it must be torch.int32"),
        (
            "context_lens",
            lambda t: t.to("meta"),
            ValueError,
            r"context_lens \[2\] is on meta, the other tensors on cpu",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(paged, name, spoil, error, message):
    case = paged.draw([3, 20])
    setattr(case, name, spoil(getattr(case, name)))
    with pytest.raises(error, match=message):
        decode(case)


@pytest.mark.parametrize("dim", [272, 512])
def test_head_dims_above_the_largest_are_refused(paged, dim):
    with pytest.raises(ValueError, match=rf"key_pool .* has head_dim {dim}; .* at most 256"):
        decode(paged.draw([3], head_dim=dim))


def test_block_sizes_above_the_largest_are_refused(paged):
    with pytest.raises(ValueError, match=r"key_pool .* has block_size 257; at most 256"):
        decode(paged.draw([3], block_size=257, num_kv_heads=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"out": torch.empty(2, 4, 32, dtype=torch.float16)}, ValueError, r"out \[2, 4, 32\] must be \[2, 4, 64\]"),
        ({"out": torch.empty(2, 4, 64)}, TypeError, r"out is torch.float32, query torch.float16"),
        ({"lse": torch.empty(4, 2)}, ValueError, r"lse \[4, 2\] must be \[2, 4\]"),
        ({"lse": torch.empty(2, 4, dtype=torch.float64)}, TypeError, r"lse \[2, 4\] is torch.float64"),
        ({"lse": torch.empty(4, 2).T}, ValueError, r"lse \[2, 4\] has last stride 2; it must be 1"),
    ],
)
def test_results_that_do_not_fit_are_refused(paged, options, error, message):
    with pytest.raises(error, match=message):
        decode(paged.draw([3, 20]), **options)


@pytest.mark.parametrize(
    ("query_start", "bound", "error", "message"),
    [
        (torch.tensor([0, 3, 8]), 5, TypeError, r"query_start \[3\] is torch.int64; it must be torch.int32"),
        (torch.tensor([0, 8], dtype=torch.int32), 5, ValueError, r"query_start \[2\] must be \[3\]"),
        (torch.tensor([[0]], dtype=torch.int32), 5, ValueError, r"query_start \[1, 1\] must have 1 dims"),
        (torch.tensor([0, 3, 8], dtype=torch.int32), -1, ValueError, r"max_query_len must not be negative, got -1"),
    ],
)
def test_a_query_start_that_does_not_fit_is_refused(paged, query_start, bound, error, message):
    case = paged.draw([3, 20], [3, 5])
    with pytest.raises(error, match=message):
        paged_prefill(case.query, *case.pools, query_start, max_query_len=bound, scale=1.0)


@pytest.mark.parametrize(
    ("name", "tensor", "error", "message"),
    [
        ("key", torch.empty(2, 1, 64), ValueError, r"key \[2, 1, 64\] must be \[2, 2, 64\]"),
        ("key", torch.empty(2, 2, 64).half(), TypeError, r"key is torch.float16, key_pool torch.float32"),
        ("value", torch.empty(3, 2, 64), ValueError, r"value \[3, 2, 64\] must be \[2, 2, 64\]"),
        ("slot_mapping", torch.tensor([0, 1, 2]), ValueError, r"slot_mapping \[3\] must be \[2\]"),
        ("slot_mapping", torch.tensor([0, 1]).int(), TypeError, r"slot_mapping \[2\] is torch.int32; .* torch.int64"),
    ],
)
def test_a_write_that_does_not_fit_is_refused_and_writes_nothing(name, tensor, error, message):
    pools = {"key_pool": torch.zeros(3, 4, 2, 64), "value_pool": torch.zeros(3, 4, 2, 64)}
    rows = {"key": torch.ones(2, 2, 64), "value": torch.ones(2, 2, 64), "slot_mapping": torch.tensor([0, 1])}
    with pytest.raises(error, match=message):
        write_cache(**{**pools, **rows, name: tensor})
    assert torch.all(pools["key_pool"] == 0)
    assert torch.all(pools["value_pool"] == 0)


def test_on_a_gpu_rows_must_start_aligned(monkeypatch):
    """Compiled kernels are specialised for it, and the ahead-of-time gate compiles nothing else."""
    monkeypatch.setattr(validation, "is_interpreted", lambda device: False)
    validation.check_rows(query=torch.empty(2, 4, 64)[:, 1:3])
    with pytest.raises(
        ValueError, match=r"query \[2, 4, 64\] with strides \(280, 70, 1\) must start at a multiple of 16"
    ):
        validation.check_rows(query=torch.empty(2, 4, 70)[..., :64])
    with pytest.raises(ValueError, match=r"out \[2, 64\] with strides \(80, 1\) must start at a multiple of 16 bytes"):
        validation.check_rows(out=torch.empty(2, 80)[:, 1:65])
    with pytest.raises(ValueError, match=r"key_pool .* below 2\^31"):
        validation.check_rows(key_pool=torch.empty(1, 64, device="meta").as_strided((2, 64), (2**31, 1)))
