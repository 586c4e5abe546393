"""The lanes that the CPU kernel calculates with: the exponential, and sums across lanes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from kvproof_kernels.cpu.arithmetic import exponential, sums_of_four, sums_of_quarters
from kvproof_kernels.cpu.compiling import compiled
from kvproof_kernels.cpu.lanes import load_floats, store


@compiled
def exponentials(numbers, results):
    for i in range(0, len(numbers), 16):
        store(results.ctypes.data + 4 * i, exponential(load_floats(numbers.ctypes.data + 4 * i)))


@compiled
def sixteen_sums(rows, result):
    start = rows.ctypes.data
    first = sums_of_four(*four(start))
    second, third, fourth = sums_of_four(*four(start + 256)), sums_of_four(*four(start + 512)), four(start + 768)
    store(result.ctypes.data, sums_of_quarters(first, second, third, sums_of_four(*fourth)))


@compiled
def four(address):
    return (load_floats(address), load_floats(address + 64), load_floats(address + 128), load_floats(address + 192))


def exp(numbers):
    numbers = np.asarray(numbers, np.float32)
    results = np.empty_like(numbers)
    exponentials(numbers, results)
    return results


def test_the_exponential_is_within_one_and_a_half_units_of_the_last_place():
    numbers = np.linspace(-87, 0, 2**16, dtype=np.float32)
    want = np.exp(numbers.astype(np.float64))
    off = np.abs(exp(numbers) - want) / np.spacing(want.astype(np.float32))
    assert off.max() <= 1.5


def test_the_exponential_of_0_is_1_and_far_below_it_is_0():
    assert (exp([0.0] * 16) == 1).all()
    assert (exp([-np.inf, -1e30, -87.1, -200.0] * 4) == 0).all()


@pytest.mark.parametrize("payload", [0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7FFFFFFF])
def test_the_exponential_of_nan_is_nan(payload):
    assert np.isnan(exp(np.full(16, payload, np.uint32).view(np.float32))).all()


def test_sums_across_lanes_are_those_of_each_row_in_order():
    rows = np.random.default_rng(0).integers(-1000, 1000, (16, 16)).astype(np.float32)
    result = np.empty(16, np.float32)
    sixteen_sums(rows, result)
    assert (result == rows.sum(1)).all()
