"""Block copy: whole blocks bit for bit, every other block as it was, ambiguous orders refused."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels import block_copy, launch
from kvproof_kernels.block_copy import copy_blocks


def random_pools(num_blocks=8, block_size=16, head_dim=64, value_dim=64, dtype=torch.float16):
    """Every bit pattern, NaN payloads included."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    info = torch.iinfo(integer)
    random = torch.Generator().manual_seed(0)
    return [
        torch.randint(info.min, info.max, (num_blocks, block_size, 2, dim), generator=random, dtype=integer).view(dtype)
        for dim in (head_dim, value_dim)
    ]


def bits(tensor):
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e5m2, torch.int8], ids=str)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 80), (192, 128), (576, 512)])
@pytest.mark.parametrize("block_size", [1, 3, 300])
def test_copies_are_bitwise_and_change_nothing_else(block_size, head_dim, value_dim, dtype):
    pools = random_pools(8, block_size, head_dim, value_dim, dtype)
    copies = [(2, 5), (2, 0), (7, 1)]
    before = [bits(pool).clone() for pool in pools]
    copy_blocks(*pools, copies)
    for pool, want in zip(pools, before, strict=True):
        for source, destination in copies:
            want[destination] = want[source]
        assert torch.equal(bits(pool), want)


def test_hnd_pools_are_copied_through_their_strides():
    pools = [torch.randn(5, 2, 16, 64).transpose(1, 2) for _ in range(2)]
    want = [pool.clone() for pool in pools]
    for pool in want:
        pool[4] = pool[1]
    copy_blocks(*pools, [(1, 4)])
    assert torch.equal(pools[0], want[0])
    assert torch.equal(pools[1], want[1])


def test_scales_of_tokens_go_along_and_no_other_changes():
    pools = random_pools(6, 3, dtype=torch.int8)
    scales = [torch.randn(6, 2, 3).transpose(1, 2), torch.randn(6, 3, 2)]
    want = [scale.clone() for scale in scales]
    for scale in want:
        scale[5], scale[0] = scale[2], scale[3]
    copy_blocks(*pools, [(2, 5), (3, 0)], key_scale=scales[0], value_scale=scales[1])
    assert torch.equal(pools[1][5], pools[1][2])
    assert torch.equal(scales[0], want[0])
    assert torch.equal(scales[1], want[1])


@pytest.mark.parametrize("value", ["none", "view"])
def test_values_inside_the_keys_are_copied_once_with_them(value, monkeypatch):
    pool = random_pools(5, 4, 576, dtype=torch.float16)[0]
    scale = torch.randn(5, 4, 2)
    scales = {"key_scale": scale} | ({"value_scale": scale} if value == "view" else {})
    want, want_scale = bits(pool).clone(), scale.clone()
    want[4], want_scale[4] = want[1], want_scale[1]
    given = []
    monkeypatch.setattr(block_copy, "launch", lambda *args: given.append(args[3]) or launch.launch(*args))
    copy_blocks(pool, None if value == "none" else pool[..., :512], [(1, 4)], **scales)
    assert torch.equal(bits(pool), want)
    assert torch.equal(scale, want_scale)
    assert given[0][1] is None


def test_values_that_only_begin_where_the_keys_do_are_copied_themselves():
    stored = torch.randn(10, 4, 1, 64)
    want = stored.clone()
    want[3], want[6] = stored[1], stored[2]
    copy_blocks(stored[:5], stored[::2], [(1, 3)])
    assert torch.equal(stored, want)


def test_blocks_of_pools_that_lie_in_one_tensor_in_turn_are_copied():
    stored = torch.randn(5, 2, 16 + 3, 2, 64)
    want = stored.clone()
    want[4, :, :16] = want[0, :, :16]
    copy_blocks(stored[:, 0, :16], stored[:, 1, :16], [(0, 4)])
    assert torch.equal(stored, want)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"key_scale": torch.ones(8, 16, 2)}, ValueError, "key_scale given; of the scales of keys and values both or"),
        ({"value_scale": torch.ones(8, 16, 2)}, ValueError, "value_scale given; of the scales .* both or none"),
        (
            {"value_pool": None, "value_scale": torch.ones(8, 16, 2)},
            ValueError,
            "value_scale given; of the scales of keys and values none, as the values are copied with the keys",
        ),
        (
            {"key_scale": torch.ones(8, 16, 1), "value_scale": torch.ones(8, 16, 2)},
            ValueError,
            r"key_scale \[8, 16, 1\]",
        ),
        (
            {"key_scale": torch.ones(8, 16, 2), "value_scale": torch.ones(8, 16, 2).half()},
            TypeError,
            r"value_scale \[8, 16, 2\] is torch.float16; it must be torch.float32",
        ),
        ({"value_pool": torch.ones(7, 16, 2, 64).half()}, ValueError, "key_pool .* and value_pool .* must agree"),
        ({"value_pool": torch.ones(8, 16, 2, 64)}, TypeError, "value_pool is torch.float32, key_pool torch.float16"),
        ({"value_pool": torch.ones(8, 16, 2, 64).half().to("meta")}, ValueError, "value_pool .* is on meta"),
        ({"value_pool": torch.ones(8, 16, 2).half()}, ValueError, r"value_pool \[8, 16, 2\] must have 4 dims"),
        ({"value_pool": torch.ones(8, 16, 64, 2).half().mT}, ValueError, "value_pool .* has last stride 2; it must"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(changed, error, message):
    key_pool, value_pool = random_pools()
    before = bits(key_pool).clone()
    with pytest.raises(error, match=message):
        copy_blocks(**{"key_pool": key_pool, "value_pool": value_pool, "copies": [(0, 1)], **changed})
    assert torch.equal(bits(key_pool), before)


def test_blocks_beyond_2_to_the_31_elements_are_reached():
    num_blocks = 2**31 // (16 * 256) + 2
    pool, scale = torch.empty(num_blocks, 16, 1, 256, dtype=torch.int8), torch.empty(num_blocks, 16, 1)
    pool[0], scale[0] = 3, 0.5
    copy_blocks(pool, None, [(0, num_blocks - 1)], key_scale=scale)
    assert torch.all(pool[-1] == 3)
    assert torch.all(scale[-1] == 0.5)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([(0, 1), (1, 2)], r"copy \(0, 1\): block 1 is also a source"),
        ([(1, 2), (0, 1)], r"copy \(0, 1\): block 1 is also a source"),
        ([(0, 3), (1, 3)], r"copy \(0, 3\): block 3 is also a destination of another copy"),
        ([(4, 4)], r"copy \(4, 4\): block 4 is also a source"),
        ([(0, 1), (2, 8)], r"copy \(2, 8\): block 8 is not in range\(8\)"),
        ([(-1, 3)], r"copy \(-1, 3\): block -1 is not in range\(8\)"),
    ],
)
def test_what_is_refused_copies_nothing(copies, message):
    pools = random_pools()
    before = [bits(pool).clone() for pool in pools]
    with pytest.raises(ValueError, match=message):
        copy_blocks(*pools, copies)
    assert torch.equal(bits(pools[0]), before[0])
    assert torch.equal(bits(pools[1]), before[1])


def test_no_copies_is_no_work():
    pools = random_pools()
    before = bits(pools[0]).clone()
    copy_blocks(*pools, [])
    assert torch.equal(bits(pools[0]), before)


def test_a_block_id_is_an_integer_and_no_number_near_one():
    pool = torch.zeros(4, 16, 2, 64)
    with pytest.raises(TypeError, match=r"copy \(1.9, 2\): a block id must be an integer"):
        copy_blocks(pool, pool.clone(), [(0, 1), (1.9, 2)])
