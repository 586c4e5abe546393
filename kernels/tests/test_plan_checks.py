"""What does not fit is refused before anything runs, by a message that names the tensor and its shape."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvproof_kernels import validation
from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.plan import PagedAttention


@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [
        ("query", lambda t: t[0], ValueError, r"query \[4, 64\] must be \[2, 4, 64\]"),
        ("query", lambda t: t[..., :32], ValueError, r"query \[2, 4, 32\] must be \[2, 4, 64\]"),
        ("query", lambda t: t[:, :3], ValueError, r"query \[2, 3, 64\] must be \[2, 4, 64\]"),
        ("query", lambda t: t.float(), TypeError, r"query \[2, 4, 64\] is torch.float32; it must be torch.float16"),
        ("query", lambda t: t.mT.contiguous().mT, ValueError, r"query \[2, 4, 64\] has last stride 4; it must be 1"),
        ("query", lambda t: t.to("meta"), ValueError, r"key_pool .* is on cpu, the other tensors on meta"),
        ("key_pool", lambda t: t[0], ValueError, r"key_pool \[16, 2, 64\] must have 4 dims"),
        ("key_pool", lambda t: t[:0], ValueError, r"key_pool \[0, 16, 2, 64\] is empty"),
        ("key_pool", lambda t: t[..., :40], ValueError, r"key_pool .* has head_dim 40; it must be a multiple of 16"),
        ("key_pool", lambda t: t[:, :8], ValueError, r"key_pool .* and value_pool .* must agree"),
        ("key_pool", lambda t: t.double(), TypeError, r"key_pool is torch.float64; the kernels take torch.float16"),
        ("value_pool", lambda t: t[:-1], ValueError, r"key_pool .* and value_pool .* must agree"),
        ("value_pool", lambda t: t.bfloat16(), TypeError, r"value_pool is torch.bfloat16, key_pool torch.float16"),
        ("value_pool", lambda t: t[..., :32], ValueError, r"value_pool .* must be \[\d+, 16, 2, 64\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(paged, name, spoil, error, message):
    case = paged.draw([3, 20])
    attend = case.plan()
    setattr(case, name, spoil(getattr(case, name)))
    with pytest.raises(error, match=message):
        attend(case.query, case.key_pool, case.value_pool)


def test_tensors_that_fitted_once_do_not_excuse_others(paged):
    case = paged.draw([3, 20])
    attend = case.plan()
    attend(case.query, case.key_pool, case.value_pool)
    with pytest.raises(TypeError, match=r"query .* is torch.float32"):
        attend(case.query.float(), case.key_pool, case.value_pool)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head_dim": 592}, "head_dim 592: a multiple of 16, at most 576"),
        ({"head_dim": 528}, "head_dim 528: above 512 only with mla and value_dim 512"),
        ({"head_dim": 40}, "head_dim 40: a multiple of 16, at most 576"),
        ({"value_dim": 528}, "value_dim 528: a multiple of 16, at most 512"),
        ({"dtype": torch.float64}, "dtype float64: float16, bfloat16, float32 only"),
        ({"kv_dtype": torch.float32}, "kv_dtype float32 with dtype float16: float16, float8_e4m3fn, float8_e5m2, int8"),
        ({"kv_scales": "head"}, "scales a head for float16: pools of 8 bits only"),
        ({"kv_scales": "token", "kv_dtype": torch.float8_e5m2}, "scales a token for float8_e5m2: int8 only"),
    ],
)
def test_a_geometry_that_is_not_supported_is_refused_with_what_is(paged, changed, message):
    case = paged.draw([3])
    with pytest.raises(ValueError, match=f"the triton kernels do not support {message}"):
        case.plan(geometry=replace(case.geometry, **changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_q_heads": 3}, r"num_q_heads \(3\) must be a multiple of num_kv_heads \(2\)"),
        ({"block_size": 0}, r"block_size \(0\) must be at least 1"),
        ({"window": 0}, r"window \(0\) must be at least 1"),
        ({"softcap": 0.0}, r"softcap \(0.0\) must be above 0"),
        ({"sinks": (0.0,)}, r"sinks \[1\] must be of num_q_heads \(4\)"),
        ({"alibi_slopes": (0.5,) * 5}, r"alibi_slopes \[5\] must be of num_q_heads \(4\)"),
        ({"softcap": math.inf}, r"softcap \(inf\) must be a number of float32"),
        ({"softcap": 1e39}, r"softcap \(1e\+39\) must be a number of float32"),
        ({"sinks": (0.0, math.inf, 0.0, 0.0)}, r"sinks\[1\] \(inf\) must be a number of float32, or -inf"),
        ({"alibi_slopes": (0.0, 0.0, math.nan, 0.0)}, r"alibi_slopes\[2\] \(nan\) must be a number of float32"),
        ({"scale": math.nan}, r"scale \(nan\) must be a number of float32"),
        ({"key_scale": math.inf}, r"key_scale \(inf\) must be a number of float32"),
        ({"value_scale": math.nan}, r"value_scale \(nan\) must be a number of float32"),
        ({"kv_scales": "block"}, r"kv_scales 'block': one of tensor, head, token"),
    ],
)
def test_a_geometry_that_means_nothing_is_refused(paged, changed, message):
    geometry = paged.draw([3]).geometry
    with pytest.raises(ValueError, match=message):
        replace(geometry, **changed)


def test_a_sink_of_minus_infinity_is_none(paged):
    case = paged.draw([3, 20])
    without = case.run(geometry=replace(case.geometry, sinks=(-math.inf,) * 4))
    assert torch.equal(without[0], case.run()[0])


def test_numbers_of_other_kinds_mean_the_same(paged):
    """An integer would be compiled in, or be of a type that the compiler does not know."""
    case = paged.draw([40, 3])
    one = replace(case.geometry, scale=1.0, window=7, softcap=2.0)
    same = replace(case.geometry, scale=1, window=np.int64(7), softcap=np.float32(2))
    assert torch.equal(case.run(geometry=same)[0], case.run(geometry=one)[0])
    terms = case.plan(geometry=same).terms
    assert [type(number) for number in (terms.scale, terms.softcap, terms.window)] == [float, float, int]


def test_lengths_may_be_integers_of_any_kind_and_nothing_else(paged):
    case = paged.draw([3, 20])
    want = case.run()[0]
    for lens in (np.array([3, 20]), torch.tensor([3, 20]), (3, np.int32(20))):
        attend = PagedAttention(case.geometry, case.block_tables, lens, torch.tensor([1, 1]))
        assert torch.equal(attend(case.query, case.key_pool, case.value_pool)[0], want)
    with pytest.raises(TypeError, match=r"context_lens must be integers, got \[3, 20.5\]"):
        PagedAttention(case.geometry, case.block_tables, [3, 20.5], [1, 1])


def test_a_context_that_32_bits_cannot_count_is_refused(paged):
    geometry = replace(paged.draw([3]).geometry, block_size=2**20)
    table = torch.zeros(1, 2**11, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"context_lens: 1073741825 tokens of sequence 0; at most 1073741824"):
        PagedAttention(geometry, table, [2**30 + 1], [1])


def test_a_window_beyond_any_context_is_none(paged):
    case = paged.draw([40])
    wide = case.plan(geometry=replace(case.geometry, window=2**40))
    assert torch.equal(wide(case.query, case.key_pool, case.value_pool)[0], case.run()[0])


@pytest.mark.parametrize(
    ("tables", "context_lens", "query_lens", "error", "message"),
    [
        (
            torch.zeros(2, 2),
            [3, 20],
            [1, 1],
            TypeError,
            r"block_tables \[2, 2\] is torch.float32; it must be torch.int32",
        ),
        (torch.zeros(2).int(), [3, 20], [1, 1], ValueError, r"block_tables \[2\] must have 2 dims"),
        (
            torch.zeros(2, 2).int().T,
            [3, 20],
            [1, 1],
            ValueError,
            r"block_tables \[2, 2\] has last stride 2; it must be 1",
        ),
        (
            torch.zeros(1, 2).int(),
            [3, 20],
            [1, 1],
            ValueError,
            r"block_tables \[1, 2\] has 1 rows, there are 2 context_lens",
        ),
        (torch.zeros(2, 2).int(), [3, 20], [1], ValueError, r"has 2 rows, there are 2 context_lens and 1 query_lens"),
        (torch.zeros(2, 2).int(), [3, -1], [1, 1], ValueError, r"context_lens must not be negative, got \[3, -1\]"),
        (
            torch.zeros(2, 2).int(),
            [3, 33],
            [1, 1],
            ValueError,
            r"context_lens: 33 tokens of sequence 1 need 3 blocks of 16; block_tables \[2, 2\] has 2",
        ),
    ],
)
def test_a_table_that_does_not_fit_its_lengths_is_refused(paged, tables, context_lens, query_lens, error, message):
    geometry = paged.draw([3, 20]).geometry
    with pytest.raises(error, match=message):
        PagedAttention(geometry, tables, context_lens, query_lens)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (torch.empty(2, 4, 32, dtype=torch.float16), ValueError, r"out \[2, 4, 32\] must be \[2, 4, 64\]"),
        (torch.empty(2, 4, 64), TypeError, r"out \[2, 4, 64\] is torch.float32; it must be torch.float16"),
        (
            torch.empty(1, 4, 64, dtype=torch.float16).expand(2, -1, -1),
            ValueError,
            r"out \[2, 4, 64\] with strides \(0, 64, 1\) holds several rows in the same place",
        ),
    ],
)
def test_an_output_that_does_not_fit_is_refused(paged, out, error, message):
    case = paged.draw([3, 20])
    with pytest.raises(error, match=message):
        case.plan()(case.query, case.key_pool, case.value_pool, out)


@pytest.mark.parametrize("outside", [-1, 10**6])
def test_an_id_outside_the_pool_is_refused_where_it_would_be_read(paged, outside):
    case = paged.draw([3, 20])
    case.block_tables[1, 1] = outside
    with pytest.raises(ValueError, match=rf"block_tables\[1, 1\] is {outside}: key_pool .* has the blocks 0 to"):
        case.run(validate=True)
    case.block_tables[1, 1], case.block_tables[1, 2] = 1, outside  # behind the context: anything may stand there
    assert case.run(validate=True)[0].shape == (2, 4, 64)


@pytest.mark.parametrize("name", ["key_pool", "value_pool"])
def test_slots_of_a_block_that_lie_2_to_the_31_apart_are_refused(paged, name):
    """Of a pool that is stored slot by slot. Within a block the kernel counts in 32 bits, which saves it registers."""
    case = paged.draw([3], num_kv_heads=1, block_size=3)
    case.block_tables.zero_()
    memory = torch.empty(2**32, dtype=torch.float16)  # of address space
    setattr(case, name, memory.as_strided((1, 3, 1, 64), (64, 2**31 - 64, 64, 1)))
    case.key_pool, case.value_pool = case.key_pool[:1], case.value_pool[:1]
    with pytest.raises(ValueError, match=rf"{name} \[1, 3, 1, 64\] .* slots of a block .* 2\^31"):
        case.run()


def test_a_common_prefix_that_is_not_common_is_refused(paged):
    case = paged.draw([20, 20])
    with pytest.raises(ValueError, match="common_prefix_blocks is 1, but the sequences' tables differ there"):
        case.run(common_prefix_blocks=1, validate=True)


def test_a_latent_pool_must_hold_the_values(paged):
    case = paged.draw([3, 20])
    attend = case.plan(geometry=replace(case.geometry, mla=True))
    with pytest.raises(ValueError, match=r"value_pool must be the view key_pool\[..., :value_dim\] with MLA"):
        attend(case.query, case.key_pool, case.value_pool)
    attend(case.query, case.key_pool, case.key_pool)
    with pytest.raises(ValueError, match=r"value_pool must be the view key_pool\[..., :value_dim\] with MLA"):
        attend(case.query, case.key_pool, case.value_pool)


@pytest.mark.parametrize(
    ("kv_scales", "scale", "error", "message"),
    [
        ("tensor", torch.ones(2), ValueError, r"key_scale \[2\] was given, but one scale serves the whole tensor"),
        ("head", None, ValueError, "key_scale is missing: there is one scale a head"),
        ("head", torch.ones(4), ValueError, r"key_scale \[4\] must be \[2\]"),
        ("head", torch.ones(2).half(), TypeError, r"key_scale \[2\] is torch.float16; it must be torch.float32"),
        ("token", torch.ones(2), ValueError, r"key_scale \[2\] must be \[\d+, 16, 2\]"),
    ],
)
def test_scales_that_do_not_fit_are_refused(paged, kv_scales, scale, error, message):
    case = paged.draw([3, 20])
    case.key_pool, case.value_pool = (pool.nan_to_num().to(torch.int8) for pool in (case.key_pool, case.value_pool))
    attend = case.plan(geometry=replace(case.geometry, kv_scales=kv_scales))
    with pytest.raises(error, match=message):
        attend(case.query, case.key_pool, case.value_pool, key_scale=scale, value_scale=scale)


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
