"""What the laws judge by, and nobody else has a reason to replace; asked after each case.

An implementation shares a process with its oracle, and could replace more than stands here. This finds who replaces a
clock, a comparison or a part of pytest, be it by accident: the worker is then started anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from _pytest import runner

from kvproof_suites import outcome

JUDGED_BY: Mapping[Any, tuple[str, ...]] = {
    time: ("time", "monotonic", "perf_counter", "perf_counter_ns"),
    torch: ("equal", "allclose", "isnan", "isfinite", "where", "nonzero"),
    torch.Tensor: ("equal", "__eq__", "__ne__", "any", "all", "isnan", "nonzero", "tolist", "clone"),
    pytest: ("skip", "fail"),
    pytest.TestReport: ("from_item_and_call",),
    runner: ("call_and_report", "runtestprotocol", "check_interactive_exception"),
    outcome: ("refuse", "not_run_here"),
    json: ("dumps", "loads"),
}


def _found() -> dict[str, Any]:
    return {f"{owner.__name__}.{name}": getattr(owner, name) for owner in JUDGED_BY for name in JUDGED_BY[owner]}


def _same(one: Any, other: Any) -> bool:
    """A method of a class is bound anew each time that it is looked up."""
    return getattr(one, "__func__", one) is getattr(other, "__func__", other)


_BEFORE = _found()
"""This module is imported before the implementation is."""


def replaced() -> list[str]:
    return [name for name, now in _found().items() if not _same(now, _BEFORE[name])]
