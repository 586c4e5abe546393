"""Waits for a core are what the system counts for each thread of this process."""

import pytest

from kvproof_suites.bench import waiting
from kvproof_suites.bench.waiting import longest_wait_seconds, waited_ns


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


def test_each_thread_is_read_and_what_can_not_be_read_is_left_out(tmp_path, monkeypatch):
    for name, text in (("1", "900 70 3\n"), ("2", "0 0 0\n"), ("3", ""), ("4", "off on 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    monkeypatch.setattr(waiting, "THREADS", tmp_path)
    assert waited_ns() == {"1": 70, "2": 0}
    monkeypatch.setattr(waiting, "THREADS", tmp_path / "nowhere")
    assert waited_ns() == {}
