"""Fixtures of the laws. They live here and not in the plugin, so that no name clashes with another suite's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from kvproof_impls.registry import load
from kvproof_suites import options
from kvproof_suites.plugin import RUN
from kvproof_suites.select import importable_id
from kvproof_suites.under_test import KernelUnderTest, MakeAllocator

if TYPE_CHECKING:
    from kvproof_suites.run import LawRun

# Gate tiers repeat exactly: fixed examples and no database. Random search belongs to the nightly tier.
GATE: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("kvproof-smoke", max_examples=25, stateful_step_count=25, **GATE)
settings.register_profile("kvproof-full", max_examples=200, stateful_step_count=50, **GATE)
settings.register_profile("kvproof-nightly", **(GATE | {"derandomize": False}), max_examples=2000)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(f"kvproof-{options.value(config, 'tier')}")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if options.value(config, "impl") else True


@pytest.hookimpl(tryfirst=True)  # so that a test has one id, whichever way the laws are collected
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("law")
    judges = partial(metafunc.config.hook.pytest_kvproof_judges, law=marker.args[0] if marker else None)
    implementations = {
        name: impl
        for name, impl in law_run(metafunc.config).implementations.items()
        if judges(implementation=name) is not False
    }
    chosen = {
        "kernel": [name for name, impl in implementations.items() if impl.kernel],
        "make_allocator": [name for name, impl in implementations.items() if impl.allocator],
        "engine": list(implementations),
    }
    for fixture, listed in chosen.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, listed, indirect=True, scope="session")


def law_run(config: pytest.Config) -> LawRun:
    found = config.pluginmanager.get_plugin(RUN)
    assert found is not None, "the laws run only with --impl"
    return found


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest, device: str) -> KernelUnderTest:
    return KernelUnderTest(request.param, law_run(request.config).kernels[request.param], device)


@pytest.fixture(scope="session")
def make_allocator(request: pytest.FixtureRequest) -> MakeAllocator:
    factory = law_run(request.config).implementations[request.param].allocator
    assert factory is not None, f"{request.param} has no allocator"
    return MakeAllocator(request.param, factory)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, device: str) -> tuple[MakeAllocator, KernelUnderTest]:
    """Both halves: what the implementation lacks comes from the oracle's allocator and the plainest kernel."""
    implementation = law_run(request.config).implementations[request.param]
    allocator = implementation.allocator or load("reference").allocator
    assert allocator is not None
    kernel = law_run(request.config).kernels.get(request.param) or load("torch").kernel
    return MakeAllocator(request.param, allocator), KernelUnderTest(request.param, kernel, device)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return law_run(request.config).device


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return options.value(request.config, "seed")


@pytest.fixture(scope="session")
def churned_tables(request: pytest.FixtureRequest) -> Any:
    """Block tables that a replay left behind: from ``--churned``, else from a made-up trace."""
    from kvproof_suites.churn import made_up_churn, read_churn

    path = options.value(request.config, "churned")
    return read_churn(Path(path)) if path else made_up_churn()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Appends a benchmark row to the records of the run."""
    rows: list[dict[str, Any]] = []
    request.node.user_properties.append(("kvproof_records", rows))

    def append(kind: str, **fields: Any) -> None:
        if kind != "benchmark":
            raise ValueError(f"record takes rows of kind 'benchmark', got {kind!r}")
        rows.append({"test": importable_id(request.node), **fields})

    return append


@pytest.fixture
def report_ratio(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Keeps the largest error ÷ bound that a test has seen, for the record."""

    def keep(ratio: float) -> None:
        properties = dict(request.node.user_properties)
        worst = max(ratio, properties.get("kvproof_error_to_bound", 0.0))
        request.node.user_properties[:] = [
            *(entry for entry in request.node.user_properties if entry[0] != "kvproof_error_to_bound"),
            ("kvproof_error_to_bound", worst),
        ]

    return keep
