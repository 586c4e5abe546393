"""Packages that only some users have."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtra(ImportError):
    """An optional package isn't installed. The text holds the line that installs it."""


def need(module: str, extra: str) -> Any:
    """Import ``module``, which comes with ``kvproof[extra]``.

    Raises:
        MissingExtra: it, or something it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"needs {error.name or module}: pip install 'kvproof[{extra}]'") from error
