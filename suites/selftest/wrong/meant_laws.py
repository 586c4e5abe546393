"""A pytest plugin for the kill run: of each wrong implementation, only the tests of the law that must catch it.

Right implementations run everything, which proves that it is the mistake that is caught.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from kvproof_suites.outcome import not_run_here
from kvproof_suites.select import implementation_of, law_of
from selftest.wrong.catalogue import Wrong


def impl_name(module: str, wrong: Wrong) -> str:
    """What ``--impl`` calls it."""
    return f"selftest.wrong.{module}:{wrong.factory.__name__}"


MODULES = {
    info.name: importlib.import_module(f"selftest.wrong.{info.name}")
    for info in pkgutil.iter_modules([str(Path(__file__).parent)])
    if info.name != "meant_laws"
}
CATALOGUES: dict[str, dict[str, Wrong]] = {
    name: module.WRONG for name, module in MODULES.items() if hasattr(module, "WRONG")
}
"""The table of each module that has one."""

MEANT = {impl_name(name, wrong): wrong.law for name, catalogue in CATALOGUES.items() for wrong in catalogue.values()}


def pytest_kvproof_judges(implementation: str, law: str | None) -> bool | None:
    return law is None or MEANT.get(implementation, law) == law


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is left: tests that take their law from a parameter."""
    meant = [item for item in items if MEANT.get(implementation_of(item) or "", law_of(item)) == law_of(item)]
    chosen = set(map(id, meant))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = meant


DEAD: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        DEAD.add(dict(report.user_properties).get("kvproof_implementation", ""))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if implementation_of(item) in DEAD & set(MEANT):
        not_run_here("dead already: one test of the law is enough")
