"""Which collected tests run, and in which order: the sharpest and cheapest laws first."""

from __future__ import annotations

import pytest

from kvproof_suites import options
from kvproof_suites.laws import LAWS

RANK = {law: rank for rank, law in enumerate(LAWS)}


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen tier, drop benchmarks unless asked for, sort by law, then as written."""
    tier = options.TIERS.index(options.value(config, "tier"))
    with_benchmarks = options.value(config, "bench")
    kept = [
        item
        for item in items
        if tier_of(item) <= tier and (with_benchmarks or not is_benchmark(item)) and applies(item)
    ]
    chosen = set(map(id, kept))
    if dropped := [item for item in items if id(item) not in chosen]:
        config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(kept, key=lambda item: RANK.get(law_of(item) or "", len(RANK)))
    for item in items:
        describe(item)


def law_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("law")
    return marker.args[0] if marker else None


def tier_of(item: pytest.Item) -> int:
    marker = item.get_closest_marker("tier")
    return options.TIERS.index(marker.args[0]) if marker else 0


def applies(item: pytest.Item) -> bool:
    """Whether an implementation has the half that the test is about; without one pytest parametrizes with a mark of
    its own, which is no name."""
    return isinstance(implementation_of(item), str | None)


def is_benchmark(item: pytest.Item) -> bool:
    return "benchmark" in getattr(item, "fixturenames", ())


def implementation_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return next((params[name] for name in ("kernel", "make_allocator", "engine") if name in params), None)


def describe(item: pytest.Item) -> None:
    """Attach what the record of the test needs; properties travel from pytest-xdist's workers with the report."""
    if law := law_of(item):
        item.user_properties.append(("kvproof_law", law))
        item.user_properties.append(("kvproof_implementation", implementation_of(item)))
        callspec = getattr(item, "callspec", None)
        if callspec and "case" in callspec.params:
            item.user_properties.append(("kvproof_case", repr(callspec.params["case"])))


def importable_id(item: pytest.Item) -> str:
    """Names the test for ``pytest --pyargs``, from any folder in which kvproof is installed."""
    module = getattr(item, "module", None)
    return f"{module.__name__ if module else item.path}::{item.nodeid.partition('::')[2]}"
