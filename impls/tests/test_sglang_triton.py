"""SGLang's Triton kernels behind the contract: doubles take what SGLang 0.5.23 takes, and answer by token slots."""

import importlib.util
import inspect
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import sglang_triton
from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.sglang_tokens import tokens_of
from kvproof_impls.sglang_triton import SglangTritonKernel

DECODE = ([5, 1, 4, 9], [1, 1, 1, 1])
MIXED = ([5, 4, 7, 2], [3, 4, 1, 1])
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.7},
    "one head a key head": {"num_q_heads": 2},
    "not causal": {"causal": False},
    "soft cap": {"softcap": 3.0},
    "sinks": {"sinks": (0.5, -1.0, 0.0, 2.0)},
    "narrow values": {"value_dim": 4},
    "lse": {"return_lse": True},
}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4, "dtype": "float32"}
    return AttentionSpec(**shape | options)


def doubles(row):
    """The calls by their recorded signatures; ``row`` attends one row."""

    def attend(out, lse, index, keys, values, query, position, scale, window, softcap, sinks, causal):
        heads, kv_heads, dim = query.shape[0], keys.shape[1], keys.shape[2]
        sinks = None if sinks is None else tuple(sinks.tolist())
        options = {"scale": scale, "window": window, "softcap": softcap or None, "sinks": sinks, "causal": causal}
        spec = AttentionSpec(heads, kv_heads, dim, 1, value_dim=values.shape[2], **options)
        for head in range(heads):
            answer, log_sum = row(spec, query[head], position, head, keys, values)
            out[index, head] = answer.to(out.dtype)
            if lse is not None:
                lse[index, head] = log_sum

    def decode_attention_fwd(
        q,
        k_buffer,
        v_buffer,
        o,
        kv_indptr,
        kv_indices,
        attn_logits,
        attn_lse,
        num_kv_splits,
        max_kv_splits,
        sm_scale,
        k_scale,
        v_scale,
        logit_cap=0.0,
        sinks=None,
        xai_temperature_len=-1,
        has_mla=False,
        use_pdl=False,
        page_size=1,
        score_mod=None,
        aux_tensors=None,
        enable_lean=None,
        lean_Mp=None,
        lean_Lp=None,
        lean_Op=None,
        lean_locks=None,
        uneven_batch=None,
    ):
        assert (kv_indptr.dtype, kv_indices.dtype, num_kv_splits.dtype) == (torch.int32, torch.int64, torch.int32)
        assert attn_logits.shape[2] == attn_lse.shape[2] == max_kv_splits == int(num_kv_splits.max())
        assert attn_logits.shape[3] == v_buffer.shape[2]  # the kernel finds its way in attn_lse by strides ÷ it
        for i in range(len(q)):
            slots = kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
            options = (sm_scale * k_scale, None, logit_cap, sinks, True)
            attend(o, attn_lse[..., 0], i, k_buffer[slots], v_buffer[slots], q[i], len(slots) - 1, *options)

    def extend_attention_fwd(
        q_extend,
        k_extend,
        v_extend,
        o_extend,
        k_buffer,
        v_buffer,
        qo_indptr,
        kv_indptr,
        kv_indices,
        custom_mask,
        is_causal,
        mask_indptr,
        max_len_extend,
        k_scale,
        v_scale,
        sm_scale=None,
        logit_cap=0.0,
        skip_prefix_custom_mask=True,
        sliding_window_size=-1,
        sinks=None,
        window_kv_offsets=None,
        xai_temperature_len=-1,
        lse_extend=None,
        skip_prefix=False,
        skip_extend=False,
        page_size=1,
        score_mod=None,
        aux_tensors=None,
        extend_seq_lens_cpu=None,
        identity_kv_indices=False,
    ):
        assert k_extend.is_contiguous()
        assert v_extend.is_contiguous()
        window = None if sliding_window_size == -1 else sliding_window_size + 1
        for i in range(len(qo_indptr) - 1):
            own, prefix = slice(*qo_indptr[i : i + 2].tolist()), kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
            keys, values = torch.cat([k_buffer[prefix], k_extend[own]]), torch.cat([v_buffer[prefix], v_extend[own]])
            for index in range(own.start, own.stop):
                position, options = len(prefix) + index - own.start, (sm_scale, window, logit_cap, sinks, is_causal)
                attend(o_extend, lse_extend, index, keys, values, q_extend[index], position, *options)

    def update_sliding_window_buffer(
        window_kv_indptr,
        translator,
        plan,
        req_pool_indices,
        sliding_window_size,
        seq_lens,
        bs,
        device=None,
        token_to_kv_pool=None,
        window_kv_indices=None,
    ):
        lengths = torch.minimum(seq_lens, torch.tensor(sliding_window_size))
        window_kv_indptr[1 : bs + 1] = lengths.cumsum(0)
        return window_kv_indptr, None, lengths, seq_lens - lengths

    def _set_kv_buffer_impl(
        k,
        v,
        k_cache,
        v_cache,
        indices,
        row_dim,
        store_dtype,
        device_module,
        size_limit,
        alt_stream=None,
        v_row_dim=None,
    ):
        assert (row_dim, v_row_dim) == (k[0].numel(), v[0].numel())
        assert (size_limit, store_dtype) == (len(k_cache), k_cache.dtype)
        k_cache[indices], v_cache[indices] = k, v

    return SimpleNamespace(**{name: call for name, call in locals().items() if name in sglang_triton.CALLS})


@pytest.fixture
def kernel(monkeypatch, paged):
    monkeypatch.setattr(sglang_triton, "library", lambda interpreted: doubles(paged.row))
    return SglangTritonKernel()


@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "extend"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_token_is_reached_through_its_slot(kernel, paged, options, lengths):
    case = paged.case(make_spec(**options), *lengths)
    given = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    out, lse = given if case.spec.return_lse else (given, None)
    expected, log_sums = paged.expected(case)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    if lse is not None:
        torch.testing.assert_close(lse.double(), log_sums, rtol=1e-5, atol=1e-5)


def test_an_extend_sees_its_window(kernel, paged):
    case = paged.case(make_spec(window=3), [9, 4, 12, 2], [3, 4, 1, 1])
    out = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    torch.testing.assert_close(out.double(), paged.expected(case)[0], rtol=1e-5, atol=1e-5)


def test_a_decode_is_shown_the_slots_that_the_back_end_counts(kernel, paged):
    case = paged.case(make_spec(window=4), *DECODE)
    indptr, indices = kernel._visible(case.spec, case.batch, case.batch.context_lens_host)
    assert indptr.diff().tolist() == [3, 1, 3, 3]
    last = case.batch.block_tables[3, torch.tensor([1, 1, 2])] * 4 + torch.tensor([2, 3, 0])
    assert indices[-3:].tolist() == last.tolist()


def test_a_write_leaves_out_what_has_no_slot(kernel, paged):
    case = paged.case(make_spec(), *DECODE, poison=0.0)
    key, value = torch.ones(3, 2, 8), torch.full((3, 2, 8), 2.0)
    before = case.pools.key.clone()
    kernel.write(case.spec, key, value, case.pools, torch.tensor([6, -1, 2]))
    changed = (case.pools.key != before).flatten(0, 1).any(-1).any(-1).nonzero().flatten().tolist()
    assert changed == [2, 6]
    assert tokens_of(case.pools.value)[6].eq(2).all()


def test_latent_attention_writes_keys_alone(kernel):
    spec = AttentionSpec(4, 1, 576, 2, dtype="float32", value_dim=512, mla=True)
    assert kernel.unsupported(spec) is None
    pool = torch.zeros(3, 2, 1, 576)
    kernel.write(spec, torch.ones(1, 1, 576), torch.empty(0), KVPools(pool, pool[..., :512]), torch.tensor([5]))
    assert pool.sum() == 576 == pool[2, 1].sum()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 1}, "window 1"),
        ({"alibi_slopes": (0.1,) * 4}, "alibi"),
        ({"kv_dtype": "float8_e4m3fn"}, "kv_dtype float8_e4m3fn"),
        ({"sinks": (0.0,) * 4, "return_lse": True}, "sinks with return_lse"),
        ({"num_kv_heads": 1, "head_dim": 64, "value_dim": 32, "mla": True}, "mla with head_dim 64"),
        ({"k_scale": 2.0}, "k_scale"),
    ],
)
def test_what_it_can_not_do_is_refused_with_the_reason(kernel, options, reason):
    spec = make_spec(**options)
    assert reason in kernel.unsupported(spec)
    with pytest.raises(ValueError, match="sglang-triton does not support"):
        kernel.plan(spec, None)


def test_a_pool_that_is_no_row_of_slots_is_refused():
    wide = torch.zeros(3, 4, 2, 16)
    assert tokens_of(wide[..., :8]).shape == (12, 2, 8)
    for pool in (wide[..., ::2], wide[:, :2], wide.transpose(1, 2)):
        with pytest.raises(ValueError, match="no row of token slots"):
            tokens_of(pool)


def test_a_process_with_a_compiled_triton_is_refused(monkeypatch):
    monkeypatch.setitem(sglang_triton.sys.modules, "triton", object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="process of its own"):
        sglang_triton.library.__wrapped__(True)


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed here")
@pytest.mark.parametrize("name", [name for name in sglang_triton.CALLS if not name.startswith("get_")])
def test_the_installed_library_takes_what_was_recorded(name, paged):
    installed = getattr(sglang_triton.library(interpreted=True), name)
    recorded = getattr(doubles(paged.row), name)
    assert list(inspect.signature(recorded).parameters) == list(inspect.signature(installed).parameters)
