"""The torch oracle, which serves long contexts, equals the standard-library oracle, which is the truth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention import attend, attention_rows
from kvproof_reference.budget import lse_bound, output_bounds
from kvproof_suites.kernel.oracle import attend_dense

SHAPES = [(1, 1), (1, 17), (3, 33), (6, 3), (1, 0)]
"""(query length, context length); the last two have rows without visible keys."""

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, block_size=16, value_dim=4)

OPTIONS = {
    "plain": SPEC,
    "window": replace(SPEC, window=5),
    "softcap": replace(SPEC, softcap=0.7),
    "alibi": replace(SPEC, alibi_slopes=(0.5, 0.25, 0.125, 1.0)),
    "sinks": replace(SPEC, sinks=(0.1, -3.0, 2.0, 0.0)),
    "scaled": replace(SPEC, scale=0.3, k_scale=0.25, v_scale=0.5),
    "all at once": replace(
        SPEC, window=4, softcap=2.0, alibi_slopes=(0.5, 0.25, 0.125, 1.0), sinks=(0.1, -3.0, 2.0, 0.0), scale=0.9
    ),
    "not causal": replace(SPEC, causal=False),
}

ARITHMETICS = [
    Arithmetic(),
    Arithmetic(query="float32", p="float32", output="float32", tf32=True),
    Arithmetic(query="bfloat16", p="bfloat16", output="bfloat16", output_rounding="toward_zero", partials="bfloat16"),
    Arithmetic(prescaled_q=True, rounded_sum=True, tile=64),
    Arithmetic(p="bfloat16", weights_take_scale=True),
    Arithmetic(p="float8_e4m3fn", weights_take_scale=True),
]

NAMES = ["fp16", "tf32", "bf16 truncating", "prescaled", "weights take bf16 scales", "weights below the normal range"]

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


def options_of(spec: AttentionSpec) -> dict[str, Any]:
    shared = ("causal", "window", "softcap", "alibi_slopes", "sinks", "k_scale", "v_scale")
    told = {name: getattr(spec, name) for name in shared}
    return {**told, "scale": spec.scale_value, "value_dim": spec.value_dim_value}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("query_len", "context_len"), SHAPES)
def test_outputs_and_lse_are_equal(query_len: int, context_len: int, option: str) -> None:
    drawn, spec = draw(query_len, context_len), OPTIONS[option]
    query, keys, values = (part.double().tolist() for part in drawn)
    out, lse = attend(query, keys, values, **options_of(spec))
    got = attend_dense(*drawn, spec, Arithmetic())
    require_close(got.out, out, "output")
    require_close(got.lse.exp(), [[math.exp(x) for x in row] for row in lse], "exp(LSE)")


def scales(context_len: int) -> dict[str, torch.Tensor]:
    """key_scales and value_scales [context_len, num_kv_heads]; a token of which nothing is left is among them."""
    drawn = torch.rand(2, context_len, SPEC.num_kv_heads, generator=torch.Generator().manual_seed(context_len)) * 4
    drawn[1, ::5] = 0
    return dict(zip(("key_scales", "value_scales"), drawn, strict=True))


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=NAMES)
@pytest.mark.parametrize(("query_len", "context_len"), SHAPES)
def test_scales_a_token_are_read_alike(query_len: int, context_len: int, arithmetic: Arithmetic) -> None:
    drawn, own = draw(query_len, context_len), scales(context_len)
    query, keys, values = (part.double().tolist() for part in drawn)
    owned = {f"{name[0]}_scales": part.double().tolist() for name, part in own.items()}
    rows = [row for _, _, row in attention_rows(query, keys, values, **options_of(SPEC), **owned)]
    got = attend_dense(*drawn, SPEC, arithmetic, **own)
    require_close(got.out, [row.output for row in rows], "output")
    require_close(got.out_bound, [output_bounds(row, arithmetic) for row in rows], "output bound")
    require_close(got.lse_bound, [lse_bound(row, arithmetic) for row in rows], "LSE bound")


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=NAMES)
@pytest.mark.parametrize("option", ["plain", "ties", "all at once", "sinks"])
@pytest.mark.parametrize(("query_len", "context_len"), SHAPES)
def test_bounds_are_equal(query_len: int, context_len: int, option: str, arithmetic: Arithmetic) -> None:
    drawn, spec = draw(query_len, context_len, ties=option == "ties"), OPTIONS.get(option, SPEC)
    query, keys, values = (part.double().tolist() for part in drawn)
    rows = [row for _, _, row in attention_rows(query, keys, values, **options_of(spec))]
    got = attend_dense(*drawn, spec, arithmetic)
    require_close(got.out_bound, [output_bounds(row, arithmetic) for row in rows], "output bound")
    require_close(got.lse_bound, [lse_bound(row, arithmetic) for row in rows], "LSE bound")
