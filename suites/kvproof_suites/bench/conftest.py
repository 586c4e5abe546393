"""Fixtures of the benchmarks, and the order of their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof_suites import options
from kvproof_suites.bench import gpu_state
from kvproof_suites.bench.allocator_calls import AllocatorCalls
from kvproof_suites.bench.attention_contest import AttentionContest
from kvproof_suites.bench.block_moves import BlockMoves
from kvproof_suites.bench.cells import ATTENTION, HostCell
from kvproof_suites.bench.clocks import HostClock, clock_for
from kvproof_suites.bench.contests import Contests, Entrant, Preparation, by_contest, entrant_of, is_empty
from kvproof_suites.bench.planning import Plan, plan_of
from kvproof_suites.bench.resuming import row_key, rows_of, whole_contests
from kvproof_suites.bench.rows import Record, write_row
from kvproof_suites.bench.standing import Standing, laws_of_run, standing
from kvproof_suites.bench.step_contest import StepContest
from kvproof_suites.bench.unchecked import unchecked
from kvproof_suites.conftest import law_run
from kvproof_suites.under_test import KernelUnderTest, MakeAllocator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    plan = plan_of(metafunc.config, law_run(metafunc.config).device)
    if "cell" in metafunc.fixturenames:
        cells = plan.cells(metafunc.module.GROUP)
        metafunc.parametrize("cell", cells, ids=str, scope="session")
    if "share" in metafunc.fixturenames:
        metafunc.parametrize("share", plan.shares, ids="{:.0%} shared".format)


@pytest.hookimpl(trylast=True)  # after pytest has grouped tests by their fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the profile has nothing of, and on request what was measured before."""
    done = rows_of(law_run(config).folder) if options.value(config, "resume") else set()
    if options.value(config, "ray") is not None:
        done = whole_contests(items, done)
    left_out = [item for item in items if is_empty(item) or (done and row_key(item) in done)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    gone = set(map(id, left_out))
    items[:] = by_contest([item for item in items if id(item) not in gone])


@pytest.fixture(scope="session")
def bench_plan(pytestconfig: pytest.Config, device: str) -> Plan:
    return plan_of(pytestconfig, device)


@pytest.fixture(scope="session")
def contests(
    request: pytest.FixtureRequest, bench_plan: Plan, churned_tables: Any, seed: int, device: str
) -> Iterator[Contests]:
    implementations = law_run(request.config).here
    kernels = {n: KernelUnderTest(n, one.kernel, device) for n, one in implementations.items() if one.kernel}
    makers = {n: MakeAllocator(n, one.allocator) for n, one in implementations.items() if one.allocator}
    host, clock = HostClock(), clock_for(device)
    attention = AttentionContest(kernels, device, churned_tables, seed, clock, bench_plan.num_layers)
    moves = BlockMoves(kernels, device, churned_tables, seed)
    preparations: dict[str, Preparation] = {
        **dict.fromkeys(ATTENTION, attention),
        **dict.fromkeys(("write", "copy"), moves),
        "allocator": AllocatorCalls(makers),
        "step_tensors": StepContest(makers),
    }
    with unchecked(one.kernel for one in kernels.values()):
        yield Contests(
            preparations,
            lambda group: host if group in ("allocator", "step_tensors") else clock,
            gpu_state.reader(device),
            bench_plan.seconds,
            seed,
            bench_plan.threads,
        )


@pytest.fixture(scope="session")
def standings(request: pytest.FixtureRequest) -> Callable[[str, str], Standing]:
    """By the laws that were recorded in this run's folder so far, and in the run that ``--verified-by`` names."""
    named = options.value(request.config, "verified-by")
    laws = [law for path in (law_run(request.config).folder, named) if path for law in laws_of_run(Path(path))]
    return lambda implementation, half: standing(laws, implementation, half)


@pytest.fixture(scope="session")
def entrants(request: pytest.FixtureRequest, standings: Callable[[str, str], Standing]) -> list[Entrant]:
    """Who takes part: every test of the session whose implementation breaks no law."""
    here = law_run(request.config).here
    found = [entrant for entrant in map(entrant_of, request.session.items) if entrant is not None]
    return [entrant for entrant in found if entrant[0] in here and not standings(entrant[0], half_of(entrant)).broken]


@pytest.fixture
def row(
    request: pytest.FixtureRequest,
    contests: Contests,
    entrants: list[Entrant],
    standings: Callable[[str, str], Standing],
    benchmark: Any,
    record: Record,
    device: str,
) -> Callable[[], None]:
    """Times and records the row of the test that asks for it."""
    entrant = entrant_of(request.node)
    assert entrant is not None, "a row is of an implementation and a cell"
    name, cell = entrant
    half = half_of(entrant)

    def write() -> None:
        where = device if half == "kernel" else "cpu"
        stands = standings(name, half)
        write_row(name, cell, where, stands, lambda: contests.result(entrant, entrants), benchmark, record)

    return write


def half_of(entrant: Entrant) -> str:
    return "allocator" if isinstance(entrant[1], HostCell) else "kernel"
