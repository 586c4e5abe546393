"""The torch oracle, which serves long contexts, equals the standard-library oracle, which is the truth."""

from __future__ import annotations

import math

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention import attend, attention_rows
from kvproof_reference.budget import lse_bound, output_bounds
from kvproof_suites.kernel.oracle import Attended, attend_dense

SHAPES = [(1, 1), (1, 17), (3, 33), (6, 3), (1, 0)]
"""(query length, context length); the last two have rows without visible keys."""

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, block_size=16, value_dim=4)

ARITHMETICS = [
    Arithmetic(),
    Arithmetic(query="float32", p="float32", output="float32", tf32=True),
    Arithmetic(query="bfloat16", p="bfloat16", output="bfloat16", output_rounding="toward_zero", partials="bfloat16"),
    Arithmetic(prescaled_q=True, rounded_sum=True, tile=64),
]

Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(query_len: int, context_len: int, ties: bool = False) -> Drawn:
    generator = torch.Generator().manual_seed(query_len + 100 * context_len)
    query = torch.randn(query_len, SPEC.num_q_heads, SPEC.head_dim, generator=generator)
    keys = torch.randn(context_len, SPEC.num_kv_heads, SPEC.head_dim, generator=generator)
    values = torch.randn(context_len, SPEC.num_kv_heads, SPEC.value_dim_value, generator=generator)
    return query, keys[torch.arange(context_len) // (3 if ties else 1)], values


def require_close(got: torch.Tensor, want: list, what: str) -> None:
    wanted = torch.tensor(want, dtype=torch.float64).reshape(got.shape)
    assert torch.allclose(got, wanted, rtol=1e-13, atol=1e-13), f"{what}: {(got - wanted).abs().max()} apart"


def twin(drawn: Drawn, arithmetic: Arithmetic) -> Attended:
    return attend_dense(*drawn, SPEC, arithmetic)


@pytest.mark.parametrize(("query_len", "context_len"), SHAPES)
def test_outputs_and_lse_are_equal(query_len: int, context_len: int) -> None:
    drawn = draw(query_len, context_len)
    query, keys, values = (part.double().tolist() for part in drawn)
    out, lse = attend(query, keys, values, scale=SPEC.scale_value, value_dim=SPEC.value_dim_value)
    got = twin(drawn, Arithmetic())
    require_close(got.out, out, "output")
    require_close(got.lse.exp(), [[math.exp(x) for x in row] for row in lse], "exp(LSE)")


@pytest.mark.parametrize("ties", [False, True], ids=["distinct scores", "ties"])
@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=["fp16", "tf32", "bf16 truncating", "prescaled"])
@pytest.mark.parametrize(("query_len", "context_len"), SHAPES)
def test_bounds_are_equal(query_len: int, context_len: int, arithmetic: Arithmetic, ties: bool) -> None:
    drawn = draw(query_len, context_len, ties)
    query, keys, values = (part.double().tolist() for part in drawn)
    every = attention_rows(query, keys, values, scale=SPEC.scale_value, value_dim=SPEC.value_dim_value)
    rows = [row for _, _, row in every]
    got = twin(drawn, arithmetic)
    require_close(got.out_bound, [output_bounds(row, arithmetic) for row in rows], "output bound")
    require_close(got.lse_bound, [lse_bound(row, arithmetic) for row in rows], "LSE bound")
