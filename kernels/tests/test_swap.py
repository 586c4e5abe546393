"""Swap: blocks go out and come back bit for bit, in any order, and nothing else changes on either side."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels import swap
from kvproof_kernels.swap import host_pool, merge_runs, swap_blocks

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8]


def random_bits(shape, dtype, seed=0):
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    info = torch.iinfo(integer)
    return torch.randint(info.min, info.max, shape, generator=torch.Generator().manual_seed(seed), dtype=integer).view(
        dtype
    )


def bits(tensor):
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def pools_of(order, dtype, device="cpu"):
    """Keys, values and scales of a token in 9 blocks, as a kernel may store them."""
    if order == "interleaved":
        stored = random_bits((9, 2, 4, 2, 32), dtype).to(device)
        keys, values = stored[:, 0], stored[:, 1]
    elif order == "HND":
        keys, values = (random_bits((9, 2, 4, 32), dtype, seed).to(device).transpose(1, 2) for seed in (1, 2))
    else:
        keys, values = (random_bits((9, 4, 2, dim), dtype, dim).to(device) for dim in (32, 16))
    return [keys, values, random_bits((9, 4, 2), torch.float32, 3).to(device)]


def filled(pool, seed):
    """A host pool of 6 blocks that holds something else."""
    made = host_pool(pool, 6)
    made.copy_(random_bits(made.shape, made.dtype, seed))
    return made


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["NHD", "HND", "interleaved"])
def test_blocks_go_out_and_come_back_elsewhere_bit_for_bit(order, dtype, where):
    device = pools_of(order, dtype, where)
    host = [filled(pool, 7 + i) for i, pool in enumerate(device)]
    before = [(bits(d.cpu()).clone(), bits(h).clone()) for d, h in zip(device, host, strict=True)]
    out, back = [(8, 0), (2, 3), (3, 4), (4, 5), (0, 1)], [(5, 0), (1, 7), (3, 6), (4, 5)]
    swap_blocks(device, host, out)
    swap_blocks(host, device, back)
    device = [pool.cpu() for pool in device]  # waits for the copies
    for d, h, (want_device, want_host) in zip(device, host, before, strict=True):
        for source, destination in out:
            want_host[destination] = want_device[source]
        for source, destination in back:
            want_device[destination] = want_host[source]
        assert torch.equal(bits(h), want_host)
        assert torch.equal(bits(d), want_device)


def test_neighbours_that_move_to_neighbours_are_one_copy():
    assert merge_runs([(7, 1), (4, 8), (3, 7), (5, 9), (8, 3)]) == [(3, 7, 3), (7, 1, 1), (8, 3, 1)]
    assert merge_runs([(0, 5), (0, 6), (1, 7), (1, 9)]) == [(0, 5, 1), (0, 6, 2), (1, 9, 1)]
    assert merge_runs([]) == []


def test_a_block_may_go_to_several_places():
    device, host = torch.randn(3, 4, 2, 16), torch.zeros(5, 4, 2, 16)
    swap_blocks([device], [host], [(1, 0), (1, 4), (2, 1), (2, 2)])
    assert torch.equal(host, torch.stack([device[1], device[2], device[2], torch.zeros(4, 2, 16), device[1]]))


@pytest.mark.parametrize(("packed", "num_copies"), [(True, 1), (False, 4)])
def test_only_blocks_that_lie_together_are_copied_together(packed, num_copies, monkeypatch):
    device = torch.randn(6, 1 if packed else 2, 4, 2, 16)[:, 0]
    copied = []
    real = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *args, **kw: copied.append(args[0].shape[0]) or real(*args, **kw))
    host = host_pool(device, 6)
    swap_blocks([device], [host], [(i, i + 2) for i in range(4)])
    assert len(copied) == num_copies
    assert sum(copied) == 4
    assert torch.equal(host[2:], device[:4])


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([(0, 1), (2, 1)], r"copy \(2, 1\): block 1 is the destination of another copy"),
        ([(9, 0)], r"copy \(9, 0\): source block 9 is not in range\(9\)"),
        ([(-1, 0)], r"copy \(-1, 0\): source block -1 is not in range\(9\)"),
        ([(0, 5), (0, 6)], r"copy \(0, 6\): destination block 6 is not in range\(6\)"),
    ],
)
def test_what_is_refused_copies_nothing(copies, message):
    device = pools_of("NHD", torch.float16)
    host = [filled(pool, 7) for pool in device]
    before = [bits(pool).clone() for pool in host]
    with pytest.raises(ValueError, match=message):
        swap_blocks(device, host, copies)
    assert all(torch.equal(bits(pool), want) for pool, want in zip(host, before, strict=True))


@pytest.mark.parametrize(
    ("source", "destination", "error", "message"),
    [
        (
            torch.ones(3, 4, 8),
            torch.ones(3, 4, 8).half(),
            TypeError,
            r"\[3, 4, 8\] are torch.float32 and torch.float16",
        ),
        (torch.ones(3, 4, 8), torch.ones(3, 8, 4), ValueError, r"sources\[0\] .* must agree in all but the number"),
        (torch.ones(3, 4, 8), torch.ones(3, 8, 4).mT, ValueError, r"store a block in different orders.*host_pool"),
        (
            torch.ones(3, 4, 8)[..., :4],
            torch.ones(3, 4, 4),
            ValueError,
            r"sources\[0\] \[3, 4, 4\] with strides .* one ",
        ),
        (torch.ones(3, 4), torch.ones(1, 4).expand(3, 4), ValueError, r"destinations\[0\] .* its blocks overlap"),
        (torch.ones(3), torch.ones(3), ValueError, r"sources\[0\] \[3\] must be \[num_blocks, ...\]"),
        (torch.ones(0, 4), torch.ones(3, 4), ValueError, r"sources\[0\] \[0, 4\] must be .* not empty"),
        (
            torch.ones(3, 4).double(),
            torch.ones(3, 4),
            TypeError,
            r"sources\[0\] \[3, 4\] is torch.float64; elements of 1",
        ),
        (torch.ones(3, 4, device="meta"), torch.ones(3, 4, device="meta"), ValueError, "one must be in host memory"),
        (torch.ones(3, 4, device="meta"), torch.ones(3, 4), ValueError, r"destinations\[0\] \[3, 4\] is not pinned"),
        (torch.ones(3, 4), torch.ones(3, 4, device="meta"), ValueError, r"sources\[0\] \[3, 4\] is not pinned"),
    ],
)
def test_pools_that_do_not_fit_are_refused(source, destination, error, message):
    with pytest.raises(error, match=message):
        swap_blocks([source], [destination], [(0, 1)])


def test_each_pool_needs_its_other_side():
    with pytest.raises(ValueError, match="2 sources and 1 destinations"):
        swap_blocks([torch.ones(3, 4)] * 2, [torch.ones(3, 4)], [(0, 1)])


def test_host_memory_for_a_gpu_is_pinned(monkeypatch):
    """Seen from the arguments: without a GPU there is no pinned memory."""
    transposed, packed = torch.ones(3, 8, 4, device="meta").mT, torch.ones(3, 4)
    made = []
    real = torch.empty
    monkeypatch.setattr(swap.torch, "empty", lambda *a, pin_memory, **kw: made.append(pin_memory) or real(*a, **kw))
    assert host_pool(transposed, 5).stride() == (32, 1, 4)
    assert host_pool(packed, 5).shape == (5, 4)
    assert made == [True, False]


def test_a_block_id_is_an_integer_and_no_number_near_one():
    pool = torch.zeros(4, 16, 2, 64)
    with pytest.raises(TypeError, match=r"copy \(1.9, 2\): a block id must be an integer"):
        swap_blocks([pool], [pool.clone()], [(0, 1), (1.9, 2)])


def test_host_memory_is_there_whatever_the_default_device_is():
    with torch.device("meta"):
        assert host_pool(torch.zeros(4, 16, 2, 64, device="cpu"), 3).device.type == "cpu"
