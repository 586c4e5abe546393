"""Waits for a core are what the system counts for each thread of this process."""

import threading
import time

import pytest

from kvproof_suites.bench import waiting
from kvproof_suites.bench.waiting import Watched, longest_wait_seconds, on_core, waited_ns, watch


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ({"1": 100, "2": 50}, {"1": 100, "2": 2_000_000_050}, 2.0),
        ({"1": 100}, {"1": 1_000_000_100, "3": 500}, 1.0),
        ({"1": 100}, {"1": 100}, 0.0),
        ({"1": 100}, {}, None),
    ],
)
def test_the_thread_that_waited_longest_counts(before, after, seconds):
    assert longest_wait_seconds(before, after) == seconds


def watched(own_wait, own_work, others_work=0.0):
    return Watched(own_wait, own_wait, own_work, others_work)


@pytest.mark.parametrize(
    ("sample", "own_wait", "own_work", "core"),
    [
        (10.0, 6.0, 4.0, 4.0),
        (10.0, 6.0, 1.0, 4.0),  # it slept for 3
        (4.0, 9.0, 4.0, 4.0),  # the wait was over when the sample began
        (4.0, 0.0, 4.001, 4.0),  # the clocks are not read at once
    ],
)
def test_waits_within_a_sample_are_taken_off_and_no_others(sample, own_wait, own_work, core):
    assert on_core([sample] * 3, [watched(own_wait, own_work)] * 3) == pytest.approx((core,) * 3)


def test_work_of_other_threads_or_a_system_that_does_not_count_leaves_it_unknown():
    alone, helped, unknown = watched(0.0, 1.0, 0.02), watched(0.0, 1.0, 0.9), watched(None, 1.0)
    assert on_core([1.0] * 3, [alone, alone, helped]) == (1.0, 1.0, 1.0)
    assert on_core([1.0] * 3, [alone, helped, helped]) is None
    assert on_core([1.0] * 3, [watched(0.0, 0.001, 0.001)] * 3) is None, "it waited for another, which had no core"
    assert on_core([1.0] * 3, [alone, alone, unknown]) is None
    assert on_core([], []) is None


def test_what_the_calling_thread_and_others_worked_is_read_during_the_call():
    def work():
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    def call():
        other = threading.Thread(target=work)
        other.start()
        other.join()
        work()
        work()
        return "result"

    result, told = watch(call)
    assert result == "result"
    assert told.own_work == pytest.approx(0.04, rel=0.3)
    assert told.others_work == pytest.approx(0.02, rel=0.3)


def test_each_thread_is_read_and_what_can_not_be_read_is_left_out(tmp_path, monkeypatch):
    for name, text in (("1", "900 70 3\n"), ("2", "0 0 0\n"), ("3", ""), ("4", "off on 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    monkeypatch.setattr(waiting, "THREADS", tmp_path)
    assert waited_ns() == {"1": 70, "2": 0}
    monkeypatch.setattr(waiting, "THREADS", tmp_path / "nowhere")
    assert waited_ns() == {}
