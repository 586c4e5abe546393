"""A pytest plugin for the kill run: of each wrong implementation, only the tests of the law that must catch it.

Right implementations run everything, which proves that it is the mistake that is caught.
"""

from __future__ import annotations

import pytest

from kvproof_suites.select import implementation_of, law_of
from selftest.wrong import allocators, kernels


def impl_name(module: str, wrong: kernels.Wrong | allocators.Wrong) -> str:
    """What ``--impl`` calls it."""
    return f"selftest.wrong.{module}:{wrong.factory.__name__}"


MEANT = {
    impl_name(module, wrong): wrong.law
    for module, catalogue in (("kernels", kernels.WRONG), ("allocators", allocators.WRONG))
    for wrong in catalogue.values()
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    meant = [item for item in items if MEANT.get(implementation_of(item) or "", law_of(item)) == law_of(item)]
    chosen = set(map(id, meant))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = meant
