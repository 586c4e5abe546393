"""A later plan in an earlier one's buffers: same addresses, new work, as a captured graph needs it."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels import plan as planning


def addresses(attend):
    buffers = attend.buffers
    return [t.data_ptr() for t in (buffers.work.items, buffers.work.positions, buffers.partial_out)]


@pytest.mark.parametrize(("before", "after"), [([5, 9], [6, 10]), ([5, 9], [6, 5000]), ([5000, 9], [1, 0])])
def test_a_reused_plan_does_its_own_work_at_the_same_addresses(paged, before, after):
    earlier = paged.draw(before).plan()
    case = paged.draw(after)
    later = case.plan(reuse=earlier)
    assert addresses(later) == addresses(earlier)
    paged.assert_attends(case, *later(case.query, case.key_pool, case.value_pool))


def test_a_launch_over_all_the_room_gives_the_same(paged, monkeypatch):
    """What a graph captures: every item that may ever be planned, and the merge, needed or not."""
    case = paged.draw([5, 600])
    attend = case.plan()
    exact = attend(case.query, case.key_pool, case.value_pool)
    monkeypatch.setattr(planning, "is_captured", lambda tensor: True)
    captured = attend(case.query, case.key_pool, case.value_pool)
    assert torch.equal(captured[0], exact[0])
    assert torch.equal(captured[1], exact[1])


def test_what_an_earlier_plan_left_in_the_buffers_is_no_work(paged, monkeypatch):
    earlier = paged.draw([5000, 9]).plan()
    case = paged.draw([20, 3])
    later = case.plan(reuse=earlier)
    monkeypatch.setattr(planning, "is_captured", lambda tensor: True)
    paged.assert_attends(case, *later(case.query, case.key_pool, case.value_pool))


def test_a_long_context_after_a_short_one_is_split_into_the_room_there_is(paged):
    earlier = paged.draw([5, 9], [12, 4], num_kv_heads=1).plan()  # a prompt: no room beyond what it needs
    case = paged.draw([2000, 2000], [12, 4], num_kv_heads=1)
    later = case.plan(reuse=earlier)
    assert later.work.num_partials <= len(earlier.buffers.partial_lse)
    paged.assert_attends(case, *later(case.query, case.key_pool, case.value_pool))


def test_a_plan_whose_buffers_were_taken_over_is_not_launched_but_by_a_graph(paged, monkeypatch):
    """Its items would be the later one's, and read its own table past the end."""
    case = paged.draw([5, 9])
    earlier = case.plan()
    later = paged.draw([9, 5])
    later.plan(reuse=earlier)
    with pytest.raises(ValueError, match="a later plan has taken over the buffers of this one"):
        earlier(case.query, case.key_pool, case.value_pool)
    monkeypatch.setattr(planning, "is_captured", lambda tensor: True)
    earlier.block_tables = later.block_tables
    paged.assert_attends(later, *earlier(later.query, later.key_pool, later.value_pool))


def test_another_number_of_rows_is_refused(paged):
    with pytest.raises(ValueError, match="reuse: the earlier launch has 2 query rows, this batch 3"):
        paged.draw([5, 9, 2]).plan(reuse=paged.draw([5, 9]).plan())


def test_another_geometry_is_refused(paged):
    with pytest.raises(ValueError, match="reuse: the earlier launch was planned for"):
        paged.draw([5, 9], head_dim=80).plan(reuse=paged.draw([5, 9]).plan())
