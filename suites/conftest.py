"""Makes ``pytest suites/ --impl=...`` work in a clone that is not installed, and keeps selftest out of law runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SHELVES = ("reference", "kernels", "traces", "impls", "reports", "suites")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if pluginmanager.has_plugin("kvproof"):  # installed: the entry point has loaded it
        return
    root = Path(__file__).parent.parent
    sys.path[:0] = [str(root / shelf) for shelf in SHELVES]
    pluginmanager.import_plugin("kvproof_suites.plugin")
    from kvproof_suites import options

    options.add_short_options(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_selftest = "selftest" in collection_path.relative_to(Path(__file__).parent).parts
    return True if is_selftest and config.getoption("kvproof_impl", None) else None
