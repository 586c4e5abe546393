"""A fixture for tests whose child processes time something: pytest-benchmark times nothing below an xdist worker, and
what makes it think so is inherited."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def outside_of_xdist() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            patch.delenv(name, raising=False)
        yield
