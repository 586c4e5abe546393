"""Modules of a checkout on the import path, of a library that is not on PyPI.

A package's own ``__init__`` may import a whole engine, and CUDA with it: a bare package of that name stands in for it
while the modules below are imported. A checkout has no version, so that its calls are compared with those of the commit
that an adapter was written for.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def module_below(package: str, name: str, project: str) -> ModuleType:
    """``package.name`` without running the ``__init__`` of ``package``.

    Raises:
        ImportError: no such package on the import path; the text says which ``project`` to put there.
    """
    if package not in sys.modules:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None or found.submodule_search_locations is None:
            raise ImportError(f"no {package} on the import path; put a checkout of {project} there")
        bare = ModuleType(package)
        bare.__path__ = list(found.submodule_search_locations)
        sys.modules[package] = bare
    return importlib.import_module(f"{package}.{name}")


def require_call(call: Callable[..., Any], parameters: Sequence[str], written_for: str) -> None:
    """Refuse a checkout in which ``call`` takes other parameters than at ``written_for``.

    Raises:
        ImportError: with both lists.
    """
    found = list(inspect.signature(call).parameters)
    if found != list(parameters):
        raise ImportError(
            f"{call.__qualname__} takes ({', '.join(found)}) in this checkout; the adapter was written for "
            f"{written_for}, where it takes ({', '.join(parameters)})"
        )
