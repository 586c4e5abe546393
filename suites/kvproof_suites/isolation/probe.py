"""Whether an implementation can be loaded where it would be run, asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvproof_impls import registry
from kvproof_impls.registry import ImplementationError
from kvproof_suites.isolation import death
from kvproof_suites.isolation.choice import is_third_party, python_of

SECONDS = 180
"""For imports: the largest libraries take half a minute where the machine is busy."""
MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Availability:
    """Of an implementation on this machine."""

    provides: str | None = None
    version: str | None = None
    where: str | None = None
    """The environment that it has to itself, as ``.venvs/NAME``."""
    reason: str | None = None
    """Why it can't be used, and what mends that."""


def availability(name: str) -> Availability:
    """A fact and not a guess: it is really loaded, other people's libraries where they would be judged."""
    try:
        if not is_third_party(name):
            loaded = registry.load(name)
            return Availability(loaded.provides, loaded.version)
        python = python_of(name)
        found = probe(name, python)
    except (registry.ImplementationError, pytest.UsageError) as error:
        reason = str(error).removeprefix(f"{name} is ").removeprefix("unavailable: ")
        return Availability(reason=reason.replace("\n", ": "))
    own = python == Path(sys.executable)
    where = None if own else f"{python.parents[2].name}/{python.parents[1].name}"
    return Availability(found["provides"], found["version"], where)


def probe(name: str, python: Path) -> dict[str, str | None]:
    """``provides`` and ``version``.

    Raises:
        ImplementationError: why it can't be used; of a death the last line that it wrote.
    """
    command = [str(python), "-m", "kvproof_impls", name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ImplementationError(f"{name} is not loaded after {SECONDS} s") from None
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    if ended.returncode != 0:
        told = str(death.by_exit(ended.returncode, ""))
        raise ImplementationError(f"{name} died when it was loaded: {told}: {lines[-1] if lines else 'no word of it'}")
    answer: dict[str, str | None] = json.loads(ended.stdout.splitlines()[-1])
    if error := answer.get("error"):
        raise ImplementationError(error if len(error) < MOST_CHARACTERS else f"{error[:MOST_CHARACTERS]}...")
    return answer
