"""The hook that a plugin of one's own can implement, in a conftest file or with ``-p``."""

from __future__ import annotations

import pytest


@pytest.hookspec(firstresult=True)
def pytest_kvproof_judges(implementation: str, law: str | None) -> bool | None:
    """Whether the tests of ``law`` are made for ``implementation`` in this run; None leaves it to others, who say yes.

    ``law`` is None where a test takes its law from a parameter.
    """
