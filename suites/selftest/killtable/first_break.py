"""A pytest plugin that bounds the kill run.

One broken test is enough for a law, and nobody reads the shrunk case. Of the laws that were not meant for a wrong
implementation, random programs are searched less far, and no more than ``KVPROOF_KILL_OTHERS`` tests run (3 where a
kernel is interpreted). All of it is counted in tests and examples, never in seconds, so that the table does not depend
on the machine.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import Phase, settings

from kvproof_suites import options
from kvproof_suites.outcome import not_run_here
from kvproof_suites.plugin import RUN
from kvproof_suites.select import implementation_of, law_of
from selftest.wrong.meant_laws import MEANT

EXAMPLES, INTERPRETED_TESTS, OTHERS = 8, 3, "KVPROOF_KILL_OTHERS"
"""Of a law that was not meant: examples of a random search; tests of an interpreted kernel, and of any other."""

BROKEN = pytest.StashKey[set[tuple[str | None, str | None]]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BROKEN] = set()
    of_the_tier = settings.get_profile(f"kvproof-{options.value(session.config, 'tier')}")
    meant = settings(of_the_tier, phases=(Phase.explicit, Phase.generate))
    settings.register_profile("kill", meant)
    settings.register_profile("kill-others", meant, max_examples=EXAMPLES)
    settings.load_profile("kill")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    implementations = config.pluginmanager.get_plugin(RUN).implementations
    interpreted = {name for name, impl in implementations.items() if getattr(impl.kernel, "interpreted", False)}
    most = int(os.environ.get(OTHERS, len(items)))
    seen: Counter[tuple[str | None, str | None]] = Counter()
    kept = []
    for item in items:
        name, law = implementation_of(item), law_of(item)
        seen[name, law] += 1
        if is_meant(item) or seen[name, law] <= (min(most, INTERPRETED_TESTS) if name in interpreted else most):
            kept.append(item)
    items[:] = kept


def is_meant(item: pytest.Item) -> bool:
    """Right implementations are meant to keep every law."""
    return MEANT.get(implementation_of(item) or "", law_of(item)) == law_of(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (implementation_of(item), law_of(item)) in item.config.stash[BROKEN]:
        not_run_here("the law is already broken")
    settings.load_profile("kill" if is_meant(item) else "kill-others")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.failed and report.when == "call":
        item.config.stash[BROKEN].add((implementation_of(item), law_of(item)))
    return report
