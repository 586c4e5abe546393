"""The adapter of torch's varlen attention binds to the torch that is installed, and means what the contract means.

The entry is played by what its documentation promises, in float64: it runs on CUDA devices alone.
"""

import inspect
import math
from importlib import metadata

import pytest
import torch
from torch.nn.attention import varlen

from kvproof_impls.contract import AttentionSpec
from kvproof_impls.torch_varlen import TorchVarlenKernel

DECODE = ([300, 1, 256, 0], [1, 1, 1, 1])
MIXED = ([300, 4, 257, 0, 2], [3, 4, 1, 1, 0])
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "a window of one": {"window": 1},
    "scale": {"scale": 0.7},
    "not causal": {"causal": False},
    "one head a key head": {"num_q_heads": 2},
}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 256, "dtype": "float16"}
    return AttentionSpec(**shape | options)


@pytest.fixture
def calls(monkeypatch, paged):
    """A ``varlen_attn_out`` that takes what the installed one takes."""
    made = []
    signature = inspect.signature(varlen.varlen_attn_out)

    def attend(*args, **options):
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = bound.arguments
        made.append(given)
        query, key, value = given["query"], given["key"], given["value"]
        start, lengths = given["cu_seq_q"], given["seqused_k"]
        left, right = given["window_size"]
        assert given["cu_seq_k"].diff().tolist() == lengths.tolist()
        assert given["enable_gqa"] == (query.shape[1] != key.shape[2])
        assert (given["max_q"], given["max_k"]) == (int(start.diff().max()), int(lengths.max()))
        spec = AttentionSpec(
            *(query.shape[1], *key.shape[2:], key.shape[1]),
            scale=given["scale"],
            causal=right == 0,
            window=None if left < 0 else left + 1,
        )
        sequences = paged.sequences(given["block_table"], lengths, spec.block_size)
        out, lse = paged.rows(spec, query, key, value, sequences, start.tolist())
        # Its kernel writes +inf for a row without keys.
        return given["out"].copy_(out), lse.masked_fill(lse == -math.inf, math.inf).T

    monkeypatch.setattr(varlen, "varlen_attn_out", attend)
    return made


def run(case, **options):
    kernel = TorchVarlenKernel()
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_lse_are_those_of_dense_attention(paged, calls, option, shape):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *shape)
    out, lse = run(case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.half())
    assert torch.equal(lse, want_lse.float())
    assert len(calls) == 1


def test_a_given_output_is_handed_to_the_library(paged, calls):
    case = paged.case(make_spec(), *DECODE)
    out = torch.full_like(case.query, math.nan)
    assert run(case, out=out) is out
    assert calls[0]["out"] is out


def test_a_table_that_is_a_view_is_made_contiguous(paged, calls):
    case = paged.case(make_spec(), *DECODE)
    case.batch.__dict__["block_tables"] = case.batch.block_tables.T.contiguous().T
    run(case)
    assert calls[0]["block_table"].stride(-1) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "float16 and bfloat16 only"),
        ({"kv_dtype": "float8_e4m3fn"}, "one type"),
        ({"block_size": 16}, "multiple of 256"),
        ({"head_dim": 264}, "at most 256"),
        ({"head_dim": 100}, "multiple of 8"),
        ({"value_dim": 4}, "one head size"),
        ({"softcap": 3.0}, "softcap"),
        ({"sinks": (0.0,) * 4}, "sinks"),
        ({"alibi_slopes": (0.5,) * 4}, "alibi_slopes"),
    ],
)
def test_every_limit_has_its_reason(options, reason):
    assert reason in TorchVarlenKernel().unsupported(make_spec(**options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is what a machine without a GPU says")
def test_the_installed_torch_takes_the_call_and_has_no_kernel_for_a_cpu(paged):
    case = paged.case(make_spec(), *DECODE, poison=0.0)
    assert metadata.version("torch").startswith("2.13.")
    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        run(case)
