"""The slowdown that the gate's trial looks for is one, and a try counts as right when it should."""

from __future__ import annotations

import time
from typing import Any

import pytest

from selftest.nightly.gate_trial import Try
from selftest.nightly.slowed import Slowed


class Sleeps:
    features = frozenset({"lse"})

    def plan(self, spec: Any, batch: Any) -> Any:
        return lambda query: time.sleep(0.02) or f"{query} seen"


def test_a_slowed_kernel_takes_longer_by_its_share_and_is_else_the_same() -> None:
    launch = Slowed(Sleeps(), 1.0).plan("spec", "batch")
    start = time.perf_counter()
    assert launch("query") == "query seen"
    assert time.perf_counter() - start >= 0.04
    assert Slowed(Sleeps(), 1.0).features == {"lse"}


@pytest.mark.parametrize(("slowdown", "failed", "right"), [(0, False, True), (0, True, False), (0.1, True, True)])
def test_a_try_is_right_when_only_what_is_slowed_fails(slowdown: float, failed: bool, right: bool) -> None:
    assert Try(slowdown, failed, 1.0, 0.9, 1.1, "same", 50).right == right
