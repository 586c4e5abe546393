"""The pytest plugin: options always, everything else only when ``--impl`` names an implementation.

Start-up must stay cheap in runs that have nothing to do with us, so that nothing here imports torch.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Generator

import pytest

from kvproof_suites import hooks, options

RUN = "kvproof-run"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_long_options(parser)
    # Of a worker: it is told by its judge what to run, and leaves the records to it.
    parser.addoption("--kvproof-serve", action="store_true", default=False, help=argparse.SUPPRESS)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, object, object]:
    result = yield
    options.add_short_options(parser)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "law(id): the law of SPEC.md that the test checks")
    config.addinivalue_line("markers", "tier(name): the smallest tier that runs the test; without it, smoke")
    if options.value(config, "impl"):
        from kvproof_suites.run import LawRun

        config.pluginmanager.register(law_run := LawRun(config), RUN)
        if options.value(config, "ray") is not None:
            from kvproof_suites.bench.spread import Spread

            config.pluginmanager.register(Spread(config, law_run.device, law_run.folder), "kvproof-spread")
    elif any("kvproof_suites" in re.split(r"[/\\.:]", argument) for argument in config.args):
        from kvproof_impls.registry import names

        raise pytest.UsageError(f"the laws need an implementation: --impl=NAME, one of {', '.join(names())}")
