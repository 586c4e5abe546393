"""Known failures: a TOML file beside the implementation, and strict.

An entry names a law or a test pattern; the tests that it names must fail. One that passes, or an entry that names no
collected test of a law that was collected, is an error: a list of excuses that nobody checks grows stale.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvproof_impls.registry import Implementation
from kvproof_suites.laws import LAWS
from kvproof_suites.select import implementation_of, law_of

FIELDS = {"law", "test", "status", "reason", "link"}
STATUSES = ("cannot", "not yet", "broken")


@dataclass(frozen=True)
class Expectation:
    law: str
    reason: str
    test: str = "*"
    status: str = "broken"
    link: str | None = None

    def names(self, item: pytest.Item) -> bool:
        return law_of(item) == self.law and fnmatch.fnmatch(item.nodeid, self.test)


def read_expectations(path: Path) -> list[Expectation]:
    """The ``[[expect]]`` entries of ``path``.

    Raises:
        pytest.UsageError: naming the file, the entry and the field that is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise pytest.UsageError(f"{path}: {error}") from None
    return [read_entry(f"{path.name}: [[expect]] {i}", entry) for i, entry in enumerate(document.get("expect", []), 1)]


def read_entry(where: str, entry: dict[str, str]) -> Expectation:
    if unknown := set(entry) - FIELDS:
        raise pytest.UsageError(f"{where}: unknown field {sorted(unknown)[0]!r}; known: {', '.join(sorted(FIELDS))}")
    if entry.get("law") not in LAWS:
        raise pytest.UsageError(f"{where}: law {entry.get('law')!r} is not one of {', '.join(LAWS)}")
    if not entry.get("reason"):
        raise pytest.UsageError(f"{where}: reason is missing; say why the law is broken")
    if entry.get("status", "broken") not in STATUSES:
        raise pytest.UsageError(f"{where}: status {entry['status']!r} is not one of {', '.join(STATUSES)}")
    return Expectation(**entry)


def apply_expectations(items: list[pytest.Item], implementations: Mapping[str, Implementation]) -> None:
    for name, implementation in implementations.items():
        if implementation.expectations is None:
            continue
        own = [item for item in items if implementation_of(item) == name]
        for expectation in read_expectations(implementation.expectations):
            expect_failure(expectation, own, implementation.expectations)


def expect_failure(expectation: Expectation, items: list[pytest.Item], path: Path) -> None:
    named = [item for item in items if expectation.names(item)]
    if not named and any(law_of(item) == expectation.law for item in items):
        raise pytest.UsageError(
            f"{path.name}: {expectation.law} {expectation.test!r} names no test; remove the entry or mend its pattern"
        )
    for item in named:
        item.add_marker(pytest.mark.xfail(reason=expectation.reason, strict=True))
