"""Huge pages are asked for where a tensor fills some, and never past its ends."""

import pytest
import torch

from kvproof_suites.bench import huge_pages
from kvproof_suites.bench.huge_pages import ADVICE, HUGE_PAGE_BYTES, in_huge_pages


@pytest.fixture
def asked(monkeypatch):
    calls = []
    monkeypatch.setattr(huge_pages, "ADVISE", lambda *call: calls.append(call) or -1)
    return calls


def test_the_whole_pages_of_a_pool_are_asked_for_in_whatever_order_it_is_seen(asked):
    pool = torch.arange(4 * HUGE_PAGE_BYTES, dtype=torch.uint8).view(4, -1, 2).permute(0, 2, 1)
    in_huge_pages(pool)
    assert [(start, length) for start, length, _ in asked] == 2 * [asked[0][:2]]
    assert tuple(advice for _, _, advice in asked) == ADVICE
    start, length, _ = asked[0]
    first, last = pool.data_ptr(), pool.data_ptr() + 4 * HUGE_PAGE_BYTES
    assert start % HUGE_PAGE_BYTES == length % HUGE_PAGE_BYTES == 0
    assert first <= start < first + HUGE_PAGE_BYTES
    assert last - HUGE_PAGE_BYTES < start + length <= last


@pytest.mark.parametrize("tensor", [torch.ones(1000), torch.ones(0), torch.empty(2**22, device="meta")])
def test_a_small_tensor_and_one_that_is_not_in_this_memory_are_left_alone(asked, tensor):
    assert in_huge_pages(tensor) is tensor
    assert asked == []


def test_what_was_written_stays():
    pool = torch.arange(2**21, dtype=torch.int32)
    assert torch.equal(in_huge_pages(pool), torch.arange(2**21, dtype=torch.int32))


def test_a_system_without_huge_pages_is_no_error(monkeypatch):
    monkeypatch.setattr(huge_pages, "ADVISE", None)
    in_huge_pages(torch.ones(2**22))
