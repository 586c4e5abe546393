"""The flash-attn adapter binds to the real signatures, and its arguments mean what the contract means.

The library's two entries are played by what their documentation promises, in float64, so that a wrong table, length,
window or LSE layout gives a wrong number here, without a GPU.
"""

import importlib.util
import inspect
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_impls.flash_attention import FlashAttentionKernel

DECODE = ([300, 1, 256, 0, 257], [1, 1, 1, 1, 1])
MIXED = ([300, 4, 257, 0, 2, 9], [3, 4, 1, 1, 5, 0])
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "scale": {"scale": 0.7},
    "not causal": {"causal": False},
}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 256, "dtype": "float16"}
    return AttentionSpec(**shape | options)


def attend_paged(paged, bound, query, key, value, lengths, tables):
    """Lists of outputs and of LSEs [heads, rows]; ``query`` is one [query_len, num_q_heads, head_dim] a sequence."""
    left, right = bound["window_size"]
    slopes = bound["alibi_slopes"]
    assert slopes is None or slopes.dtype == torch.float32
    assert (left < 0) == (right < 0)
    spec = AttentionSpec(
        query[0].shape[1],
        key.shape[2],
        key.shape[3],
        key.shape[1],
        scale=bound["softmax_scale"],
        causal=bound["causal"],
        window=None if left < 0 else left + 1,
        softcap=bound["softcap"] or None,
        alibi_slopes=None if slopes is None else tuple(slopes.tolist()),
    )
    outs, lses = [], []
    for rows, length, table in zip(query, lengths.tolist(), tables, strict=True):
        own = table[: -(-length // spec.block_size)].long()
        keys, values = (pool[own].flatten(0, 1)[:length] for pool in (key, value))
        pieces = [
            [paged.row(spec, row[head], length - len(rows) + i, head, keys, values) for head in range(row.shape[0])]
            for i, row in enumerate(rows)
        ]
        outs.append(torch.stack([torch.stack([out for out, _ in heads]) for heads in pieces]) if pieces else rows)
        lse = torch.tensor([[lse for _, lse in heads] for heads in pieces]).reshape(len(rows), spec.num_q_heads)
        # Its kernel writes +inf for a row without keys.
        lses.append(lse.masked_fill(lse == -math.inf, math.inf).T)
    return outs, lses


@pytest.fixture
def library(monkeypatch, paged, recorded):
    """A ``flash_attn`` that checks each call against the recorded signature, then keeps and answers it."""
    calls = []

    def bind(name, args, options):
        bound = inspect.signature(getattr(recorded, name)).bind(*args, **options)
        bound.apply_defaults()
        calls.append((name, bound.arguments))
        return bound.arguments

    def with_kvcache(*args, **options):
        bound = bind("flash_attn_with_kvcache", args, options)
        tables, lengths = bound["block_table"], bound["cache_seqlens"]
        if tables is None:  # one page a sequence, all of it valid
            tables = torch.arange(len(bound["q"]), dtype=torch.int32)[:, None]
            lengths = torch.full((len(bound["q"]),), bound["k_cache"].shape[1], dtype=torch.int32)
        assert lengths.dtype == tables.dtype == torch.int32
        outs, lses = attend_paged(paged, bound, list(bound["q"]), bound["k_cache"], bound["v_cache"], lengths, tables)
        out = torch.stack(outs).to(bound["q"].dtype)
        return (out, torch.stack(lses).float()) if bound["return_softmax_lse"] else out

    def varlen(*args, **options):
        bound = bind("flash_attn_varlen_func", args, options)
        start, lengths = bound["cu_seqlens_q"], bound["cu_seqlens_k"].diff()
        assert start.dtype == bound["cu_seqlens_k"].dtype == bound["block_table"].dtype == torch.int32
        assert (bound["max_seqlen_q"], bound["max_seqlen_k"]) == (int(start.diff().max()), int(lengths.max()))
        rows = bound["q"].split(start.diff().tolist())
        outs, lses = attend_paged(paged, bound, rows, bound["k"], bound["v"], lengths, bound["block_table"])
        return torch.cat(outs).to(bound["q"].dtype), torch.cat(lses, 1).float(), None

    module = SimpleNamespace(flash_attn_with_kvcache=with_kvcache, flash_attn_varlen_func=varlen)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return calls


def run(case, **options):
    kernel = FlashAttentionKernel()
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_lse_are_those_of_dense_attention(paged, library, option, shape):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *shape)
    out, lse = run(case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.half())
    assert lse.shape == want_lse.shape
    assert torch.equal(lse, want_lse.float())


@pytest.mark.parametrize(("shape", "entry"), [(DECODE, "flash_attn_with_kvcache"), (MIXED, "flash_attn_varlen_func")])
def test_one_row_a_sequence_takes_the_decode_entry_and_all_else_varlen(paged, library, shape, entry):
    run(paged.case(make_spec(), *shape))
    assert [name for name, _ in library] == [entry]


def test_varlen_gets_cumulative_lengths_and_the_table_as_it_is(paged, library):
    case = paged.case(make_spec(), [300, 4, 2], [3, 4, 1])
    run(case)
    ((_, bound),) = library
    assert bound["cu_seqlens_q"].tolist() == [0, 3, 7, 8]
    assert bound["cu_seqlens_k"].tolist() == [0, 300, 304, 306]
    assert torch.equal(bound["block_table"], case.batch.block_tables)


def test_a_table_that_is_a_view_is_made_contiguous(paged, library):
    case = paged.case(make_spec(), *DECODE)
    case.batch.__dict__["block_tables"] = case.batch.block_tables.T.contiguous().T
    run(case)
    assert library[0][1]["block_table"].stride(-1) == 1


def test_a_given_output_is_filled_and_returned(paged, library):
    case = paged.case(make_spec(), *DECODE)
    out = torch.full_like(case.query, math.nan)
    assert run(case, out=out) is out
    assert torch.equal(out, paged.expected(case)[0].half())


def test_the_dense_form_takes_contiguous_keys_and_no_table(paged, library):
    case = paged.case(make_spec(softcap=2.0), [9, 9], [1, 1])
    out = FlashAttentionKernel().dense(case.spec, case.query, torch.stack(case.keys), torch.stack(case.values))
    assert torch.equal(out, paged.expected(case)[0].half())
    assert library[0][1]["block_table"] is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "float16 and bfloat16 only"),
        ({"kv_dtype": "float8_e4m3fn"}, "one type"),
        ({"block_size": 16}, "multiple of 256"),
        ({"block_size": 384}, "multiple of 256"),
        ({"head_dim": 264}, "at most 256"),
        ({"head_dim": 100}, "multiple of 8"),
        ({"value_dim": 4}, "one head size"),
        ({"v_scale": 2.0}, "no scales"),
        ({"sinks": (0.0,) * 4}, "sinks"),
        ({"causal": False, "alibi_slopes": (0.5,) * 4}, "causal=False"),
    ],
)
def test_every_limit_has_its_reason(options, reason):
    assert reason in FlashAttentionKernel().unsupported(make_spec(**options))


@pytest.mark.parametrize("options", [{"block_size": 512}, {"head_dim": 256}, {"dtype": "bfloat16"}])
def test_what_the_library_takes_is_not_refused(options):
    assert FlashAttentionKernel().unsupported(make_spec(**options)) is None


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash-attn is not installed here")
@pytest.mark.parametrize("name", ["flash_attn_with_kvcache", "flash_attn_varlen_func"])
def test_the_installed_package_takes_what_was_recorded(recorded, name):
    installed = inspect.signature(getattr(pytest.importorskip("flash_attn"), name))
    assert set(inspect.signature(getattr(recorded, name)).parameters) <= set(installed.parameters)
