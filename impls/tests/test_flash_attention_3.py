"""The adapters of FlashAttention 3 and 4 bind to the real signatures, and their arguments mean what the contract means.

The library's entries are played by what their documentation promises, in float64.
"""

import inspect
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_impls.flash_attention_3 import FlashAttention3Kernel
from kvproof_impls.flash_attention_4 import FlashAttention4Kernel

DECODE = ([17, 1, 4, 0], [1, 1, 1, 1])
MIXED = ([17, 4, 9, 0, 2], [3, 4, 1, 1, 0])
SINKS = {"sinks": (0.5, -1.5, 0.0, 1.5)}
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.7},
    "not causal": {"causal": False},
    "192 with 128 dims": {"head_dim": 192, "value_dim": 128},
}
LATENT = {"num_kv_heads": 1, "mla": True, "head_dim": 576, "value_dim": 512, "num_q_heads": 2}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4, "dtype": "float16"}
    return AttentionSpec(**shape | options)


def answer(paged, bound, key, value, lengths, left, sinks=None):
    """Output and LSE [heads, rows]; with ``qv``, scores are of both parts."""
    query, start = bound["q"], bound["cu_seqlens_q"]
    assert start.dtype == torch.int32
    assert bound["max_seqlen_q"] == int(start.diff().max())
    value_dim = value.shape[-1]
    if bound["qv"] is not None:
        query, key = torch.cat([bound["qv"], query], -1), torch.cat([value, key], -1)
    spec = AttentionSpec(
        query.shape[1],
        key.shape[2],
        key.shape[3],
        key.shape[1],
        value_dim=value_dim,
        scale=bound["softmax_scale"],
        causal=bound["causal"],
        window=left,
        softcap=bound["softcap"] or None,
        sinks=sinks,
    )
    sequences = paged.sequences(bound["page_table"], lengths, spec.block_size)
    out, lse = paged.rows(spec, query, key, value, sequences, start.tolist())
    return out, lse.T


@pytest.fixture
def calls(monkeypatch, paged, recorded):
    """Doubles of ``flash_attn_interface`` and ``flash_attn.cute``, which check each call against the record."""
    made = []

    def bind(owner, name, args, options):
        bound = inspect.signature(getattr(getattr(recorded, owner), name)).bind(*args, **options)
        bound.apply_defaults()
        made.append(bound.arguments)
        return bound.arguments

    def with_kvcache(*args, **options):
        bound = bind("FlashAttention3", "flash_attn_with_kvcache", args, options)
        left, right = bound["window_size"]
        assert (left < 0) == (right < 0)
        window = None if left < 0 else left + 1
        out, lse = answer(paged, bound, bound["k_cache"], bound["v_cache"], bound["cache_seqlens"], window)
        if int(bound["cache_seqlens"].max()) == 0:
            lse = torch.full_like(lse, math.inf)
        return (out, lse, None, None) if bound["return_softmax_lse"] else out

    def varlen(*args, **options):
        bound = bind("FlashAttention4", "flash_attn_varlen_func", args, options)
        left, right = bound["window_size"]
        assert (left is None) == (right is None)
        assert bound["max_seqlen_k"] == int(bound["seqused_k"].max())
        assert bound["cu_seqlens_k"] is None
        window = None if left is None else left + 1
        sinks = None if bound["learnable_sink"] is None else tuple(bound["learnable_sink"].tolist())
        out, lse = answer(paged, bound, bound["k"], bound["v"], bound["seqused_k"], window, sinks)
        return out, (lse if bound["qv"] is None else lse.T) if bound["return_lse"] else None

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_with_kvcache=with_kvcache))
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flash_attn.cute", SimpleNamespace(flash_attn_varlen_func=varlen))
    return made


KERNELS = {"3": FlashAttention3Kernel(), "4": FlashAttention4Kernel(9), "4 on sm_100": FlashAttention4Kernel(10)}


def run(kernel, case, **options):
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_lse_are_those_of_dense_attention(paged, calls, option, shape, kernel):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *shape)
    out, lse = run(kernel, case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.half())
    assert torch.equal(lse, want_lse.float())
    assert len(calls) == 1


@pytest.mark.parametrize("kernel", [KERNELS["3"], KERNELS["4 on sm_100"]], ids=["3", "4"])
def test_a_latent_pool_is_given_as_two_views_of_itself(paged, calls, kernel):
    case = paged.latent(paged.case(make_spec(return_lse=True, **LATENT), [9, 4], [2, 1]))
    out, lse = run(kernel, case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.half())
    assert torch.equal(lse, want_lse.float())
    own = case.pools.key.untyped_storage().data_ptr()
    views = [value for value in calls[0].values() if torch.is_tensor(value) and value.dim() == 4]
    assert [view.untyped_storage().data_ptr() for view in views] == [own, own]


def test_a_sink_counts_once_in_weights_and_lse(paged, calls):
    case = paged.case(make_spec(return_lse=True, **SINKS), *MIXED)
    out, lse = run(KERNELS["4"], case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.half())
    assert torch.equal(lse, want_lse.float())


def test_a_batch_of_empty_contexts_has_an_lse_of_minus_infinity(paged, calls):
    case = paged.case(make_spec(return_lse=True), [0, 0], [1, 1])
    out, lse = run(KERNELS["3"], case)
    assert torch.equal(lse, torch.full((2, 4), -math.inf))
    assert not out.any()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_given_output_is_filled_and_returned(paged, calls, kernel):
    case = paged.case(make_spec(), *DECODE)
    out = torch.full_like(case.query, math.nan)
    assert run(kernel, case, out=out) is out
    assert torch.equal(out, paged.expected(case)[0].half())


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "float16, bfloat16"),
        ({"kv_dtype": "float8_e4m3fn"}, "one type"),
        ({"k_scale": 0.5}, "one type"),
        ({"alibi_slopes": (0.5,) * 4}, "alibi_slopes"),
        ({"head_dim": 264}, "at most 256"),
        ({"head_dim": 100}, "of 8"),
        ({"mla": True, "num_kv_heads": 1, "head_dim": 80, "value_dim": 64}, "qv"),
    ],
)
def test_every_limit_has_its_reason(options, reason, kernel):
    assert reason in kernel.unsupported(make_spec(**options))


def test_what_only_one_chip_or_version_takes_is_refused_by_the_other():
    assert "sinks" in KERNELS["3"].unsupported(make_spec(**SINKS))
    assert "other than head_dim" in KERNELS["3"].unsupported(make_spec(head_dim=128, value_dim=64))
    assert "10 and 11" in KERNELS["4"].unsupported(make_spec(**LATENT))
    assert "window: not together" in KERNELS["4 on sm_100"].unsupported(make_spec(**LATENT, window=3))
    assert KERNELS["4"].unsupported(make_spec(head_dim=160)) is None
    assert "above 128 only" in KERNELS["4 on sm_100"].unsupported(make_spec(head_dim=160))
