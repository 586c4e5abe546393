"""The slowdown that the gate's trial looks for is one, and a try counts as right when it should."""

from __future__ import annotations

import time
from typing import Any

import pytest

from selftest.nightly.gate_trial import Try
from selftest.nightly.slowed import Slowed


class Works:
    features = frozenset({"lse"})

    def plan(self, spec: Any, batch: Any) -> Any:
        def launch(query: str) -> str:
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            return f"{query} seen"

        return launch


def test_a_slowed_kernel_works_longer_by_its_share_and_is_else_the_same() -> None:
    launch = Slowed(Works(), 1.0).plan("spec", "batch")
    start = time.thread_time()
    assert launch("query") == "query seen"
    assert 0.04 <= time.thread_time() - start < 0.05
    assert Slowed(Works(), 1.0).features == {"lse"}


@pytest.mark.parametrize(("slowdown", "failed", "right"), [(0, False, True), (0, True, False), (0.1, True, True)])
def test_a_try_is_right_when_only_what_is_slowed_fails(slowdown: float, failed: bool, right: bool) -> None:
    assert Try(slowdown, failed, 1.0, 0.9, 1.1, "same", 50).right == right
