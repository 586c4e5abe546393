"""The torch kernel gives dense attention on each sequence's own keys, and nothing else can reach its output."""

import math

import pytest
import torch

from kvproof_impls import torch_gather
from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.torch_gather import TorchKernel, gather

# Rounding of the output and of the softmax weights, each half a unit in the last place, on values of size 4 at most.
TOLERANCE = {"float32": 4e-6, "float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}

SHAPES = {
    "decode": ([1, 3, 4, 5, 17], [1, 1, 1, 1, 1]),
    "prefill": ([6, 4], [6, 4]),
    "chunk": ([9, 11], [3, 3]),
    "mixed": ([9, 1, 7, 0, 12, 3], [1, 1, 7, 1, 5, 0]),
    "more rows than keys": ([2, 0, 5], [4, 2, 5]),
    "nothing at all": ([0, 0], [1, 1]),
}
OPTIONS = {
    "plain": {},
    "window 1": {"window": 1},
    "window 5": {"window": 5},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": (0.5, -1.0, 3.0, 100.0)},
    "scale": {"scale": 0.7},
    "kv scales": {"k_scale": 0.5, "v_scale": 2.0},
    "not causal": {"causal": False},
    "all at once": {"window": 4, "softcap": 3.0, "alibi_slopes": (0.5, 0.25, 0.0, 1.0), "sinks": (0.0, 1.0, 2.0, -3.0)},
}


def make_spec(**options):
    return AttentionSpec(**{"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4} | options)


def run(case, **options):
    kernel = TorchKernel()
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


def assert_near(got, want, dtype):
    assert torch.isfinite(got).all()
    assert (got.double() - want).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_output_is_dense_attention_on_own_keys(paged, option, shape, dtype):
    case = paged.case(make_spec(dtype=dtype, **OPTIONS[option]), *SHAPES[shape])
    got = run(case)
    assert got.dtype == getattr(torch, dtype)
    assert_near(got, paged.expected(case)[0], dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_lse_is_the_natural_logarithm_and_that_of_nothing_but_the_sink_for_a_row_without_keys(paged, option, shape):
    case = paged.case(make_spec(dtype="float32", return_lse=True, **OPTIONS[option]), *SHAPES[shape])
    out, lse = run(case)
    want_out, want_lse = paged.expected(case)
    assert_near(out, want_out, "float32")
    assert lse.dtype == torch.float32
    empty = want_lse == -math.inf
    assert torch.equal(lse == -math.inf, empty)
    assert torch.allclose(lse[~empty].double(), want_lse[~empty], rtol=0, atol=4e-6)


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 192, 256])
def test_every_block_size_and_head_dim_is_served(paged, block_size, head_dim):
    spec = make_spec(dtype="float32", block_size=block_size, head_dim=head_dim, num_q_heads=3, num_kv_heads=1)
    case = paged.case(spec, [block_size + 1, 2], [1, 1])
    assert_near(run(case), paged.expected(case)[0], "float32")


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_long_contexts_keep_their_precision(paged, dtype, head_dim):
    spec = make_spec(dtype=dtype, head_dim=head_dim, num_q_heads=1, num_kv_heads=1, block_size=16)
    case = paged.case(spec, [1100, 700], [2, 1])
    assert_near(run(case), paged.expected(case)[0], dtype)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, 1e4, 0.0])
@pytest.mark.parametrize("option", OPTIONS)
def test_bytes_that_no_sequence_owns_change_no_output_bit(paged, option, poison):
    spec = make_spec(dtype="float32", **OPTIONS[option])
    nan, other = (paged.case(spec, *SHAPES["mixed"], poison=p) for p in (math.nan, poison))
    assert torch.equal(run(nan), run(other))


@pytest.mark.parametrize("padding_id", [0, 1, -7, 2**31 - 1])
def test_padding_ids_are_never_followed(paged, padding_id):
    spec = make_spec(dtype="float32")
    usual, other = (paged.case(spec, *SHAPES["mixed"], padding_id=p) for p in (-1, padding_id))
    assert torch.equal(run(usual), run(other))


def test_blocks_outside_the_window_are_never_read(paged):
    case = paged.case(make_spec(dtype="float32", window=3), [8, 8], [2, 2])  # the first row sees positions 4 to 6
    dead = case.batch.block_tables[:, 0].long()
    want = run(case)
    case.pools.key[dead] = math.nan
    case.pools.value[dead] = math.nan
    case.batch.block_tables[:, 0] = -1
    assert torch.equal(run(case), want)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_renaming_blocks_and_a_larger_pool_or_table_change_no_output_bit(paged, dtype, option):
    spec = make_spec(dtype=dtype, **OPTIONS[option])
    case = paged.case(spec, *SHAPES["mixed"])
    num_blocks = case.pools.key.shape[0]
    renamed = torch.randperm(num_blocks + 40, generator=torch.Generator().manual_seed(1))[:num_blocks]
    pools = []
    for pool in (case.pools.key, case.pools.value):
        larger = pool.new_full((num_blocks + 40, *pool.shape[1:]), math.nan)
        larger[renamed] = pool
        pools.append(larger)
    want = run(case)
    tables = case.batch.block_tables
    wider = torch.full((tables.shape[0], tables.shape[1] + 9), -1, dtype=torch.int32)
    wider[:, : tables.shape[1]] = torch.where(tables >= 0, renamed[tables.clamp(min=0).long()], -1)
    case.batch.__dict__["block_tables"] = wider
    case.pools = KVPools(*pools)
    assert torch.equal(run(case), want)


def test_two_runs_give_the_same_bits_and_a_launch_reads_new_contents(paged):
    case = paged.case(make_spec(dtype="bfloat16"), *SHAPES["mixed"])
    launch = TorchKernel().plan(case.spec, case.batch)
    first = launch(case.query, case.pools)
    assert torch.equal(first, launch(case.query, case.pools))
    case.pools.value.mul_(2)
    assert torch.equal(launch(case.query, case.pools), 2 * first)


def test_a_launch_gathers_into_the_buffers_it_has(paged, monkeypatch):
    case = paged.case(make_spec(dtype="float32"), [9, 5], [1, 1])
    seen = []
    attend = torch_gather.fused_softmax

    def watch(spec, bucket, query, key, value):
        seen.append((key.data_ptr(), value.data_ptr()))
        return attend(spec, bucket, query, key, value)

    monkeypatch.setattr(torch_gather, "fused_softmax", watch)
    launch = TorchKernel().plan(case.spec, case.batch)
    launch(case.query, case.pools)
    launch(case.query, case.pools)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("return_lse", [False, True])
def test_a_given_output_is_written_in_place(paged, return_lse):
    case = paged.case(make_spec(dtype="float16", return_lse=return_lse), *SHAPES["mixed"])
    out = torch.full_like(case.query, math.nan)
    got = run(case, out=out)
    assert (got[0] if return_lse else got) is out
    assert_near(out, paged.expected(case)[0], "float16")


def test_value_may_be_a_slice_of_key_as_in_latent_attention(paged):
    case = paged.case(make_spec(dtype="float32", num_kv_heads=1, head_dim=12, value_dim=8), *SHAPES["mixed"])
    case.pools = KVPools(case.pools.key, case.pools.key[..., :8])
    case.values = [key[..., :8] for key in case.keys]
    assert_near(run(case), paged.expected(case)[0], "float32")


def test_pools_may_be_views_of_any_strides(paged):
    case = paged.case(make_spec(dtype="float32"), *SHAPES["mixed"])
    want = run(case)
    guarded = torch.full((case.pools.key.shape[0], 6, 2, 8), math.nan)
    guarded[:, 1:5] = case.pools.key
    heads_first = case.pools.value.transpose(1, 2).contiguous().transpose(1, 2)
    case.pools = KVPools(guarded[:, 1:5], heads_first)
    assert torch.equal(run(case), want)


def test_gathering_from_a_plain_pool_copies_no_more_than_it_returns():
    pool = torch.empty(2**16, 16, 8, 128, dtype=torch.bfloat16)  # 2 GiB, never touched
    assert gather(pool, torch.tensor([[5, 16]]), {}, "key").shape == (1, 2, 8, 128)


def test_write_touches_its_slots_and_nothing_else(paged):
    case = paged.case(make_spec(dtype="float32", block_size=3), [7], [1], poison=5.0)
    before = [case.pools.key.clone(), case.pools.value.clone()]
    new = [torch.randn(4, 2, 8), torch.randn(4, 2, 8)]
    slots = [7, -1, 0, 11]
    TorchKernel().write(case.spec, *new, case.pools, torch.tensor(slots))
    for pool, old, rows in zip((case.pools.key, case.pools.value), before, new, strict=True):
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                old[slot // 3, slot % 3] = row
        assert torch.equal(pool, old)


def test_write_divides_by_the_scales_that_reading_multiplies_by(paged):
    spec = make_spec(dtype="float32", k_scale=0.5, v_scale=4.0)
    case = paged.case(spec, [4], [1])
    TorchKernel().write(spec, torch.full((1, 2, 8), 3.0), torch.full((1, 2, 8), 8.0), case.pools, torch.tensor([2]))
    assert (case.pools.key[0, 2] == 6).all()
    assert (case.pools.value[0, 2] == 2).all()


def test_copies_are_made_whole_and_all_sources_are_read_first(paged):
    case = paged.case(make_spec(dtype="float32"), [8], [1], poison=5.0)
    before = case.pools.key.clone()
    TorchKernel().copy_blocks(case.pools, [(0, 3), (0, 2)])
    assert torch.equal(case.pools.key, before[[0, 1, 0, 0, 4]])
    TorchKernel().copy_blocks(case.pools, [])
    assert torch.equal(case.pools.value[2], case.pools.value[0])


@pytest.mark.parametrize(("field", "dtype"), [("dtype", "float64"), ("dtype", "float8_e4m3fn"), ("kv_dtype", "int16")])
def test_other_types_are_refused_by_name(field, dtype):
    assert dtype in TorchKernel().unsupported(make_spec(**{field: dtype}))


def test_pools_of_another_float_type_are_served(paged):
    case = paged.case(make_spec(dtype="bfloat16", kv_dtype="float32"), *SHAPES["mixed"])
    assert_near(run(case), paged.expected(case)[0], "bfloat16")


@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("kv_scales", ["head", "token"])
def test_codes_mean_what_the_scale_of_their_head_or_token_makes_of_them(paged, kv_scales, kv_dtype):
    case = paged.case(make_spec(dtype="float32"), *SHAPES["mixed"], poison=0.0)
    pools = [(pool * 20).to(getattr(torch, kv_dtype)) for pool in (case.pools.key, case.pools.value)]
    shape = (2,) if kv_scales == "head" else (*case.pools.key.shape[:3],)
    scales = [torch.rand(shape) / 10 for _ in pools]
    meant = [pool.float() * scale[..., None] for pool, scale in zip(pools, scales, strict=True)]
    want = TorchKernel().plan(case.spec, case.batch)(case.query, KVPools(*meant))
    spec = make_spec(dtype="float32", kv_dtype=kv_dtype, kv_scales=kv_scales)
    got = TorchKernel().plan(spec, case.batch)(case.query, KVPools(*pools, *scales))
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE["float32"])


def test_a_row_of_int8_is_stored_with_the_scale_that_makes_its_largest_number_127():
    pools = KVPools(*torch.zeros(2, 3, 4, 2, 8, dtype=torch.int8), *torch.ones(2, 3, 4, 2))
    spec = make_spec(kv_dtype="int8", kv_scales="token")
    key = torch.tensor([[[127.0, 2.5, 3.5, -3.5, 0, 1, 2, 3]] * 2, [[0.0] * 8, [math.nan] + [1.0] * 7]])
    TorchKernel().write(spec, key, key / 2, pools, torch.tensor([5, 2]))
    assert pools.key[1, 1, 0].tolist() == pools.value[1, 1, 0].tolist() == [127, 2, 4, -4, 0, 1, 2, 3]
    assert (pools.key_scale[1, 1, 0], pools.value_scale[1, 1, 0]) == (1, 0.5)
    assert pools.key_scale[0, 2, 0] == 0
    assert pools.key_scale[0, 2, 1].isnan()
    assert torch.count_nonzero(pools.key[0, 2]) == 0
    assert (pools.key_scale[2] == 1).all()


def test_a_block_copy_takes_scales_a_token_along_and_leaves_scales_a_head():
    pools = KVPools(*torch.arange(48.0).view(2, 3, 1, 2, 4), torch.tensor([1.0, 2.0]), torch.arange(6.0).view(3, 1, 2))
    TorchKernel().copy_blocks(pools, [(0, 2)])
    assert pools.key_scale.tolist() == [1, 2]
    assert pools.value_scale[2].tolist() == [[0, 1]]
    assert torch.equal(pools.key[2], pools.key[0])


def test_latent_attention_writes_its_keys_alone():
    pool = torch.zeros(2, 4, 1, 8)
    key = torch.randn(1, 1, 8)
    spec = make_spec(dtype="float32", num_kv_heads=1, mla=True, value_dim=6)
    TorchKernel().write(spec, key, torch.full((1, 1, 6), 7.0), KVPools(pool, pool[..., :6]), torch.tensor([5]))
    assert torch.equal(pool[1, 1], key[0])
