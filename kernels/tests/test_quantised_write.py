"""A cache write into 8-bit pools: the nearest code of x ÷ scale, saturated, with scales given or made at a slot."""

from __future__ import annotations

import math

import pytest
import torch

from kvproof_kernels.cache_write import write_cache

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
CODES = [*FP8, torch.int8]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def written(x, dtype, scale=1.0, device="cpu"):
    """The codes that numbers [n], n a multiple of 16, become on ``device``: one row of 16 to a slot."""
    rows = x.view(-1, 1, 16).to(device)
    pool = torch.zeros(len(rows), 1, 1, 16, dtype=dtype, device=device)
    write_cache(rows, None, pool, None, torch.arange(len(rows), device=device), key_scale=scale)
    return pool.flatten().cpu()


def cast(x, dtype):
    """Torch's cast, saturating; of float32 [...] without NaN in int8."""
    clamped = x.clamp(-LARGEST[dtype], LARGEST[dtype])
    return (clamped.round() if dtype == torch.int8 else clamped).to(dtype)


def every(dtype):
    """Each of the 2^16 numbers of a type of 16 bits."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def finite_codes(dtype):
    """(codes from zero up, as integers; what they mean, float64)."""
    codes = torch.arange(128, dtype=torch.uint8)
    values = codes.view(dtype).double()
    return codes[values.isfinite()], values[values.isfinite()]


def padded(x):
    return torch.cat([x, x.new_zeros(-len(x) % 16)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_16_bit_number_becomes_the_code_that_torch_casts_it_to(dtype, rows, device):
    x = every(rows)
    numbers = ~x.isnan()
    got = written(x, dtype, device=device)
    assert torch.equal(got.view(torch.int8)[numbers], cast(x.float(), dtype).view(torch.int8)[numbers])
    if dtype == torch.int8:
        assert torch.all(got[~numbers] == 0)
    else:
        assert got[~numbers].float().isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_a_number_half_way_between_two_codes_becomes_the_even_one_and_next_to_it_the_nearer_one(dtype, device):
    codes, values = finite_codes(dtype)
    halves = ((values[1:] + values[:-1]) / 2).float()
    assert torch.equal(halves.double() * 2, values[1:] + values[:-1]), "float32 holds every half"
    even = torch.where(codes[:-1] % 2 == 0, codes[:-1], codes[1:])
    for sign in (1, -1):
        for x, want in (
            (halves, even),
            (torch.nextafter(halves, halves.new_tensor(0.0)), codes[:-1]),
            (torch.nextafter(halves, halves.new_tensor(math.inf)), codes[1:]),
        ):
            got = written(padded(sign * x), dtype, device=device)[: len(x)].float()
            assert torch.equal(got, sign * values[want.long()].float())


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_no_code_is_nearer_to_any_float32(dtype):
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2**14,), generator=random, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    near = torch.randn(2**14, generator=random) * 2.0 ** torch.randint(-18, 17, (2**14,), generator=random)
    x = torch.cat([x[x.isfinite()], near])
    _, values = finite_codes(dtype)
    got = written(padded(x), dtype)[: len(x)].double()
    best = (x.double().abs()[:, None] - values).abs().amin(1)
    assert torch.equal((x.double() - got).abs(), best)
    assert torch.equal(got.signbit(), x.signbit())


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_what_is_beyond_the_range_saturates(dtype):
    largest = LARGEST[dtype]
    beyond = torch.tensor([1.0, 1.001, 1.0625, 2.0, 1e30, math.inf, torch.finfo(torch.float32).max / largest, 1.5])
    x = torch.cat([beyond * largest, -beyond * largest])
    assert torch.equal(written(x, dtype).float(), x.sign() * largest)
    assert torch.equal(written(x, dtype, 0.125).float(), x.sign() * largest)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_zeros_keep_their_sign(dtype):
    codes = written(torch.tensor([0.0, -0.0] * 8), dtype).view(torch.uint8)
    assert codes.tolist() == [0, 128] * 8


@pytest.mark.parametrize("rows", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("scale", [0.3, 0.0007, 11.0])
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_is_divided_by_the_scale_and_rounded_once(device, scale, dtype, rows):
    x = (torch.randn(2**12, generator=torch.Generator().manual_seed(1)) * LARGEST[dtype] * scale / 2).to(rows)
    got = written(x, dtype, scale, device)
    assert torch.equal(got.view(torch.int8), cast(x.float() / scale, dtype).view(torch.int8))


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16, 300])
def test_each_head_has_its_scale_and_keys_and_values_theirs(block_size, dtype):
    key, value = torch.randn(7, 3, 80), torch.randn(7, 3, 48)
    pools = [torch.ones(3, 3, block_size, dim).to(dtype).transpose(1, 2) for dim in (80, 48)]  # HND
    scales = [torch.tensor([0.01, 9.0, 0.02, 9.0, 0.07])[::2], torch.tensor([0.5, 0.03, 0.011])]
    slots = [-1, 3 * block_size - 1, -1, 0, block_size, -1, 2 * block_size]
    want = [pool.clone() for pool in pools]
    for pool, rows, scale in zip(want, (key, value), scales, strict=True):
        for row, slot in zip(cast(rows / scale[:, None], dtype), slots, strict=True):
            if slot >= 0:
                pool[slot // block_size, slot % block_size] = row
    write_cache(key, value, *pools, torch.tensor(slots), key_scale=scales[0], value_scale=scales[1])
    for pool, expected in zip(pools, want, strict=True):
        assert torch.equal(pool.view(torch.int8), expected.view(torch.int8))


def token_pools(num_blocks=5, block_size=4, num_kv_heads=2, dims=(64, 32)):
    """int8 pools and scales stored head by head, filled with what nobody has written."""
    pools = [torch.full((num_blocks, block_size, num_kv_heads, dim), 55, dtype=torch.int8) for dim in dims]
    scales = [torch.full((num_blocks, num_kv_heads, block_size), -7.0).transpose(1, 2) for _ in dims]
    return pools, scales


@pytest.mark.parametrize("rows", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_scale_a_token_makes_its_largest_magnitude_127_and_lies_at_its_slot(rows):
    pools, scales = token_pools()
    sent = [(torch.randn(6, 2, dim) * torch.logspace(-6, 3, 12).view(6, 2, 1)).to(rows) for dim in (64, 32)]
    slots = torch.tensor([19, -1, 0, 7, -1, 12])
    write_cache(*sent, *pools, slots, key_scale=scales[0], value_scale=scales[1])
    for x, pool, scale in zip(sent, pools, scales, strict=True):
        own, x = slots[slots >= 0], x[slots >= 0].float()
        made = x.abs().amax(2) / 127
        want_scale, want = torch.full((20, 2), -7.0), torch.full((20, *pool.shape[2:]), 55, dtype=torch.int8)
        want_scale[own], want[own] = made, cast(x / made[:, :, None], torch.int8)
        assert torch.equal(scale.reshape(20, 2), want_scale)
        assert torch.equal(pool.view(want.shape), want)
        steps = (want[own].double() - x.double() / made[:, :, None].double()).abs()
        assert steps.max() <= 0.5 + 127 * 2.0**-24, "half a step, and the rounding of the quotient"


def test_rows_of_zeros_and_tiny_rows_are_read_back_as_zeros_and_without_nan():
    pools, scales = token_pools(dims=(64, 64))
    tiny = torch.zeros(3, 2, 64)
    tiny[1], tiny[2, 0, 5] = -0.0, 2.0**-149
    write_cache(tiny, tiny, *pools, torch.tensor([2, 9, 17]), key_scale=scales[0], value_scale=scales[1])
    for pool, scale in zip(pools, scales, strict=True):
        rows = (pool * scale[..., None]).view(20, 2, 64)[[2, 9, 17]]
        assert torch.equal(scale.reshape(20, 2)[[2, 9, 17]], torch.zeros(3, 2))
        assert torch.all(rows == 0)
        assert torch.all(pool.view(20, 2, 64)[[2, 9, 17]] == 0)


@pytest.mark.parametrize("wrong", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_row_that_int8_cannot_hold_is_read_back_as_nan_and_its_neighbours_are_not(wrong):
    pools, scales = token_pools(dims=(64, 64))
    rows = torch.randn(3, 2, 64)
    rows[1, 0, 3] = wrong
    write_cache(rows, rows, *pools, torch.tensor([4, 5, 6]), key_scale=scales[0], value_scale=scales[1])
    for pool, scale in zip(pools, scales, strict=True):
        meant = (pool * scale[..., None]).view(20, 2, 64)
        assert meant[5, 0].isnan().all()
        assert not meant[5, 1].isnan().any()
        assert not meant[[4, 6]].isnan().any()


@pytest.mark.parametrize("kind", ["tensor", "head", "token"])
def test_without_values_the_keys_alone_are_written(kind):
    pools, scales = token_pools(dims=(576,))
    key = torch.randn(4, 2, 576)
    given = {"tensor": 0.02, "head": torch.tensor([0.02, 0.03]), "token": scales[0]}[kind]
    write_cache(key, None, pools[0], None, torch.tensor([3, 11, -1, 0]), key_scale=given)
    made = {"tensor": 0.02, "head": torch.tensor([[0.02], [0.03]])}.get(kind, key.abs().amax(2, keepdim=True) / 127)
    want = cast(key / made, torch.int8)
    assert torch.equal(pools[0].view(20, 2, 576)[[3, 11, 0]], want[[0, 1, 3]])


def test_codes_beyond_2_to_the_31_elements_are_reached():
    num_blocks = 2**31 // (16 * 256) + 2
    pool = torch.empty(num_blocks, 16, 1, 256, dtype=torch.int8)
    scales = torch.empty(num_blocks, 16, 1)
    key = torch.randn(1, 1, 256).half()
    write_cache(key, None, pool, None, torch.tensor([num_blocks * 16 - 1]), key_scale=scales)
    assert scales[-1, 15, 0] == key.float().abs().max() / 127
    assert torch.equal(pool[-1, 15, 0], cast(key[0, 0].float() / scales[-1, 15, 0], torch.int8))


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_rows_that_are_codes_already_are_moved_as_bits(dtype):
    rows = torch.arange(-128, 128, dtype=torch.int32).to(torch.int8).view(2, 2, 64).view(dtype)
    pool = torch.zeros(3, 4, 2, 64, dtype=torch.int8).view(dtype)
    write_cache(rows, None, pool, None, torch.tensor([11, 2]))
    assert torch.equal(pool.view(torch.int8).view(12, 2, 64)[[11, 2]], rows.view(torch.int8))


TOKEN = {"key_scale": torch.rand(3, 4, 2), "value_scale": torch.rand(3, 4, 2)}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"key_scale": 0.0}, ValueError, "key_scale 0.0 must be a positive number in the range of float32"),
        ({"value_scale": -1.0}, ValueError, "value_scale -1.0 must be a positive number"),
        ({"key_scale": math.nan}, ValueError, "key_scale nan must be a positive number"),
        ({"key_scale": 1e-60}, ValueError, "key_scale 1e-60 must be a positive number in the range of float32"),
        ({"key_scale": torch.ones(3)}, ValueError, r"key_scale \[3\] must be a number, \[2\] \(one a head\) or \[3, 4"),
        ({"key_scale": torch.tensor(1.0)}, ValueError, r"key_scale \[\] must be a number"),
        ({"key_scale": torch.ones(2).half()}, TypeError, r"key_scale \[2\] is torch.float16; it must be torch.float32"),
        ({"key_scale": torch.ones(2, device="meta")}, ValueError, r"key_scale \[2\] is on meta"),
        ({"key_scale": torch.ones(2)}, ValueError, r"key_scale \[2\] is one a head, value_scale 1.0 is one a tensor"),
        ({"key_scale": torch.ones(3, 4, 1)}, ValueError, r"key_scale \[3, 4, 1\] must be \[3, 4, 2\]"),
        ({"key_scale": torch.ones(3, 4, 2).double()}, TypeError, r"key_scale \[3, 4, 2\] is torch.float64"),
        (TOKEN, ValueError, r"key_scale \[3, 4, 2\] is one a token; .* pools of torch.int8, key_pool is torch.float8"),
        ({"key": torch.ones(2, 2, 64).double()}, TypeError, "key is torch.float64, key_pool torch.float8_e4m3fn; .*"),
        ({"key": torch.ones(2, 2, 64).char()}, TypeError, "key is torch.int8, key_pool torch.float8_e4m3fn; .*"),
        ({"value": torch.ones(2, 2, 64).half()}, TypeError, "value is torch.float16, key torch.float32"),
        ({"value": None}, ValueError, "value_pool is given, value is None; without values"),
        ({"value_pool": None}, ValueError, "value is given, value_pool is None; without values"),
        (
            {"key_pool": torch.zeros(3, 4, 2, 64)},
            TypeError,
            "value_pool is torch.float8_e4m3fn, key_pool torch.float32",
        ),
        ({"key_pool": torch.zeros(3, 4, 2, 1040)}, ValueError, r"key_pool .* multiple of 16, at most 1024"),
        ({"key_pool": torch.zeros(3, 4, 2, 64).double()}, TypeError, "key_pool is torch.float64; the kernels take"),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(changed, error, message):
    pools = [torch.zeros(3, 4, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    arguments = {"key": torch.ones(2, 2, 64), "value": torch.ones(2, 2, 64), "key_pool": pools[0]}
    arguments |= {"value_pool": pools[1], "slot_mapping": torch.tensor([0, 1])}
    with pytest.raises(error, match=message):
        write_cache(**{**arguments, **changed})
    assert not any(pool.view(torch.int8).any() for pool in pools)


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("key_scale", 0.5, "key_scale 0.5: key_pool torch.float32 takes rows as they are; it must be 1"),
        ("value_scale", 2, "value_scale 2: key_pool torch.float32 takes rows as they are"),
        ("key_scale", torch.ones(2), r"key_scale \[2\]: key_pool torch.float32 takes rows as they are"),
    ],
)
def test_a_scale_where_rows_are_stored_as_they_are_is_refused(name, scale, message):
    pools = [torch.zeros(3, 4, 2, 64) for _ in range(2)]
    with pytest.raises(ValueError, match=message):
        write_cache(torch.ones(2, 2, 64), torch.ones(2, 2, 64), *pools, torch.tensor([0, 1]), **{name: scale})
    assert not any(pool.any() for pool in pools)
