"""Which implementations of a run are isolated, and by which interpreter each is run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from kvproof_impls import environments, registry
from kvproof_impls.built_in import BUILT_IN


def pythons(names: Iterable[str], way: str, given: Sequence[str]) -> dict[str, Path]:
    """By name, for those that get a worker.

    Args:
        way: of ``--isolate``: "auto", "all" or "no".
        given: of ``--python``: ``PATH``, or ``NAME=PATH`` for one of several.

    Raises:
        pytest.UsageError: an interpreter that is none, a name that has none, or an environment that is not as locked.
    """
    listed = list(names)
    chosen = [name for name in listed if way == "all" or (way == "auto" and is_third_party(name))]
    named = named_pythons(given, listed, chosen)
    return {name: named.get(name) or python_of(name) for name in chosen}


def is_third_party(name: str) -> bool:
    """Whatever is not of this repository; a name that means nothing is told where it is loaded."""
    return BUILT_IN[name].third_party if name in BUILT_IN else ":" in name or name in registry.names()


def named_pythons(given: Sequence[str], listed: Sequence[str], chosen: Sequence[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, path = text.rpartition("=")
        if equals and name not in listed:
            raise pytest.UsageError(f"--python={text}: {name!r} is not in --impl; one of {', '.join(listed)}")
        if not Path(path).is_file():
            raise pytest.UsageError(f"--python={text}: {path} is no interpreter; name the file, bin/python of a venv")
        for one in [name] if equals else chosen:
            found[one] = Path(path).absolute()
    return found


def python_of(name: str) -> Path:
    """This interpreter, or that of the environment which the implementation has to itself."""
    environment = BUILT_IN[name].environment if name in BUILT_IN else None
    found = environments.python_of(environment) if environment else None
    if environment is None or found is None:
        return Path(sys.executable)
    if (reason := environments.mismatch(environment)) is not None:
        raise pytest.UsageError(f"{name} is unavailable: {reason}")
    return found
