"""What the CPU kernel refuses, by the name and the shape of what is wrong."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from kvproof_kernels.cpu import PagedAttention

PLAN = {
    "block_tables": torch.zeros(2, 3, dtype=torch.int32),
    "context_lens": [40, 9],
    "query_lens": [1, 1],
    "num_q_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "value_dim": 32,
    "block_size": 16,
    "scale": 1.0,
}
LAUNCH = {
    "query": torch.zeros(2, 4, 64),
    "key_pool": torch.zeros(3, 16, 2, 64),
    "value_pool": torch.zeros(3, 16, 2, 32),
    "out": torch.zeros(2, 4, 32),
}


def test_what_is_right_is_taken():
    out, lse = PagedAttention(**PLAN)(**LAUNCH)
    assert out is LAUNCH["out"]
    assert lse.shape == (2, 4)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_q_heads": 3}, ValueError, r"num_q_heads \(3\) must be a multiple of num_kv_heads \(2\)"),
        ({"num_kv_heads": 0}, ValueError, r"num_kv_heads \(0\) must be at least 1"),
        ({"head_dim": 0}, ValueError, r"head_dim \(0\) must be at least 1"),
        ({"block_size": 0}, ValueError, r"block_size \(0\) must be at least 1"),
        ({"window": 0}, ValueError, r"window \(0\) must be at least 1"),
        ({"softcap": -1.0}, ValueError, r"softcap \(-1.0\) must be above 0"),
        ({"alibi_slopes": [1.0]}, ValueError, r"alibi_slopes \[1\] must be of num_q_heads \(4\)"),
        ({"sinks": [1.0] * 5}, ValueError, r"sinks \[5\] must be of num_q_heads \(4\)"),
        ({"context_lens": [40, 49]}, ValueError, r"sequence 1: context_len 49 is beyond block_tables \[2, 3\]"),
        ({"context_lens": [40, -1]}, ValueError, "sequence 1: context_len -1 and query_len 1 must not be negative"),
        ({"context_lens": [40]}, ValueError, r"block_tables \[2, 3\], 1 context_lens and 2 query_lens"),
        ({"block_tables": torch.zeros(3).int()}, ValueError, r"block_tables \[3\] must have 2 dims"),
        ({"block_tables": torch.zeros(3, 3).int()}, ValueError, r"block_tables \[3, 3\], 2 context_lens"),
        ({"block_tables": torch.zeros(2, 3).long()}, TypeError, r"block_tables \[2, 3\] is torch.int64"),
        ({"block_tables": torch.zeros(2, 3)}, TypeError, r"block_tables \[2, 3\] is torch.float32"),
        (
            {"block_tables": torch.zeros(2, 3, dtype=torch.int32, device="meta")},
            ValueError,
            r"block_tables \[2, 3\] is on meta; this kernel runs on a CPU",
        ),
    ],
)
def test_a_plan_names_what_it_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        PagedAttention(**{**PLAN, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": torch.zeros(3, 4, 64)}, ValueError, r"query \[3, 4, 64\] must be \[2, 4, 64\]"),
        ({"out": torch.zeros(2, 4, 64)}, ValueError, r"out \[2, 4, 64\] must be \[2, 4, 32\]"),
        ({"key_pool": torch.zeros(3, 8, 2, 64)}, ValueError, r"key_pool \[3, 8, 2, 64\] must be \[3, 16, 2, 64\]"),
        (
            {"value_pool": torch.zeros(3, 16, 2, 32).half()},
            TypeError,
            "value_pool is torch.float16, key_pool torch.float32",
        ),
        ({"out": torch.zeros(2, 4, 32).half()}, TypeError, "out is torch.float16, query torch.float32"),
        (
            {"query": torch.zeros(2, 4, 64).double()},
            TypeError,
            r"query \[2, 4, 64\] is torch.float64; the kernel takes torch.float16",
        ),
        (
            {"key_pool": torch.zeros(3, 16, 2, 64).double()},
            TypeError,
            r"key_pool \[3, 16, 2, 64\] is torch.float64; the kernel takes torch.float16",
        ),
        ({"query": torch.zeros(2, 256)}, ValueError, r"query \[2, 256\] must be \[2, 4, 64\]"),
        ({"key_pool": torch.zeros(48, 2, 64)}, ValueError, r"key_pool \[48, 2, 64\] must have 4 dims"),
        (
            {"value_pool": torch.zeros(4, 16, 2, 32)},
            ValueError,
            r"value_pool \[4, 16, 2, 32\] must be \[3, 16, 2, 32\]",
        ),
        ({"query": torch.zeros(2, 4, 64, device="meta")}, ValueError, r"query \[2, 4, 64\] is on meta"),
        (
            {"value_pool": torch.zeros(3, 16, 2, 32, device="meta")},
            ValueError,
            r"value_pool \[3, 16, 2, 32\] is on meta",
        ),
        ({"out": torch.zeros(2, 4, 32, device="meta")}, ValueError, r"out \[2, 4, 32\] is on meta"),
        (
            {"value_pool": torch.zeros(3, 16, 32, 2).mT},
            ValueError,
            r"value_pool \[3, 16, 2, 32\] has last stride 2; it must be 1",
        ),
        (
            {"key_pool": torch.zeros(3, 16, 64, 2).transpose(2, 3)},
            ValueError,
            r"key_pool \[3, 16, 2, 64\] has last stride 2; it must be 1",
        ),
    ],
)
def test_a_launch_names_what_it_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        PagedAttention(**PLAN)(**{**LAUNCH, **changes})
