"""Known failures: TOML files, one beside the implementation and those of ``--expect``; strict both ways.

An entry names a law, a pattern of test ids, or both; the tests that it names must fail, and in the way that it says.
One that passes is an error, and so is an entry that names no test: a list of excuses that nobody checks grows stale.
"""

from __future__ import annotations

import builtins
import fnmatch
import importlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kvproof_impls.registry import Implementation
from kvproof_reports.bounded import TOML_BYTES, read_text
from kvproof_suites.isolation.death import STATUSES as DEATHS
from kvproof_suites.laws import LAWS
from kvproof_suites.options import TIERS
from kvproof_suites.select import implementation_of, law_of

STATUSES = {
    "cannot": "can't be done by design, and is not declared as refused",
    "not yet": "will be done, and isn't",
    "broken": "a fault",
}
PARTS = {"allocator", "kernel", "engine"}
"""Folders of law tests; a run over all of them must find a test for every entry."""


@dataclass(frozen=True)
class Expectation:
    where: str
    """File and number of the entry."""
    reason: str
    law: str | None = None
    test: str = "*"
    status: str = "broken"
    link: str | None = None
    tier: str = TIERS[0]
    """The smallest tier that shows it; random programs of a smaller one may be too few to find it."""
    versions: str = ""
    """A PEP 440 specifier; the entry counts only for versions of the implementation inside it."""
    raises: str = "AssertionError"
    """The law is broken; or the name of an exception, or how the worker ends: crashed, timed_out, out_of_memory,
    out_of_disk, tampered. A failure of another kind is not the known one."""

    def names(self, item: pytest.Item) -> bool:
        return self.law in (None, law_of(item)) and fnmatch.fnmatch(item.nodeid, self.test)

    def shows_in(self, tier: str) -> bool:
        return TIERS.index(self.tier) <= TIERS.index(tier)

    @property
    def told(self) -> str:
        return f"{self.status}: {self.reason}" + (f" ({self.link})" if self.link else "")

    @property
    def exceptions(self) -> tuple[type[BaseException], ...]:
        """None for a worker's end, which its judge sees and the test doesn't."""
        if self.raises in DEATHS:
            return ()
        kind = exception_named(self.raises)
        return (AssertionError, pytest.fail.Exception) if kind is AssertionError else (kind,)


FIELDS = {field.name for field in fields(Expectation)} - {"where"}


def read_expectations(path: Path) -> list[Expectation]:
    """The ``[[expect]]`` entries of ``path``.

    Raises:
        pytest.UsageError: naming the file, the entry and the field that is wrong.
    """
    try:
        document = tomllib.loads(read_text(path, TOML_BYTES))
    except (OSError, ValueError, RecursionError) as error:  # of which TOMLDecodeError is but one
        raise pytest.UsageError(f"{path}: {error}") from None
    if unknown := set(document) - {"expect"}:
        raise pytest.UsageError(f"{path}: unknown table {sorted(unknown)[0]!r}; entries are written under [[expect]]")
    entries = document.get("expect", [])
    if not isinstance(entries, list):
        raise pytest.UsageError(f"{path}: [expect] is one table; entries are written under [[expect]]")
    if not all(isinstance(entry, dict) for entry in entries):
        raise pytest.UsageError(f"{path}: expect holds what is no table; entries are written under [[expect]]")
    return [read_entry(f"{path}: [[expect]] {number}", entry) for number, entry in enumerate(entries, 1)]


def read_entry(where: str, entry: Mapping[str, Any]) -> Expectation:
    if unknown := set(entry) - FIELDS:
        raise pytest.UsageError(f"{where}: unknown field {sorted(unknown)[0]!r}; known: {', '.join(sorted(FIELDS))}")
    for name, value in entry.items():
        if not isinstance(value, str) or not value:
            raise pytest.UsageError(f"{where}: {name} is {value!r}; it must be a text that is not empty")
    if "law" not in entry and "test" not in entry:
        raise pytest.UsageError(f"{where}: names neither a law nor a test pattern")
    if entry.get("law", next(iter(LAWS))) not in LAWS:
        raise pytest.UsageError(f"{where}: law {entry['law']!r} is not one of {', '.join(LAWS)}")
    if "reason" not in entry:
        raise pytest.UsageError(f"{where}: reason is missing; say why the law is broken")
    if entry.get("status", "broken") not in STATUSES:
        raise pytest.UsageError(f"{where}: status {entry['status']!r} is not one of {', '.join(STATUSES)}")
    expectation = Expectation(where, **entry)
    if expectation.tier not in TIERS:
        raise pytest.UsageError(f"{where}: tier {expectation.tier!r} is not one of {', '.join(TIERS)}")
    try:
        SpecifierSet(expectation.versions)
        _ = expectation.exceptions  # a name that means nothing is told here
    except InvalidSpecifier:
        text = f"{where}: versions {expectation.versions!r} is no version specifier, such as '>=2.7,<2.9'"
        raise pytest.UsageError(text) from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise pytest.UsageError(f"{where}: raises {expectation.raises!r} names no exception: {error}") from None
    return expectation


def exception_named(name: str) -> type[BaseException]:
    """A built-in exception, or one of a module: ``torch.cuda.OutOfMemoryError``."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module) if module else builtins, attribute)
    if not isinstance(found, type) or not issubclass(found, BaseException):
        raise TypeError(f"{name} is {found!r}")
    return found


def apply_expectations(
    items: Sequence[pytest.Item],
    implementations: Mapping[str, Implementation],
    given: Sequence[Path],
    arguments: Sequence[str],
    tier: str = TIERS[-1],
) -> None:
    """Mark the tests that must fail in ``tier``.

    Args:
        given: the files of ``--expect``, which hold for every implementation of the run.
        arguments: of pytest; where they name single files or tests an entry may well find none.
    """
    shared = [entry for path in given for entry in read_expectations(path) if entry.shows_in(tier)]
    matched = {entry for name, impl in implementations.items() for entry in shared if mark(entry, items, name, impl)}
    stale = [entry for entry in shared if entry not in matched]
    for name, implementation in implementations.items():
        own = read_expectations(implementation.expectations) if implementation.expectations else []
        stale += [entry for entry in own if entry.shows_in(tier) and not mark(entry, items, name, implementation)]
    if stale and is_whole(items, arguments):
        entry = stale[0]
        raise pytest.UsageError(
            f"{entry.where}: {entry.law or 'any law'} {entry.test!r} names no test of {', '.join(implementations)}; "
            "remove the entry or mend it"
        )


def mark(entry: Expectation, items: Sequence[pytest.Item], name: str, implementation: Implementation) -> bool:
    """Mark what ``entry`` names; whether it counts for this version and names anything. Outside its versions it rests,
    which is not the same as stale."""
    named = [item for item in items if implementation_of(item) == name and entry.names(item)]
    if (named or implementation.version) and not applies_to(entry, implementation):
        return True
    for item in named:
        item.add_marker(pytest.mark.xfail(reason=entry.told, strict=True, raises=entry.exceptions))
        item.stash[EXPECTED] = entry
    return bool(named)


EXPECTED = pytest.StashKey[Expectation]()


def applies_to(entry: Expectation, implementation: Implementation) -> bool:
    if not entry.versions:
        return True
    try:
        return Version(implementation.version or "") in SpecifierSet(entry.versions, prereleases=True)
    except InvalidVersion:
        raise pytest.UsageError(
            f"{entry.where}: versions {entry.versions!r} can't be compared with version {implementation.version!r} of "
            f"{implementation.name}"
        ) from None


def is_whole(items: Sequence[pytest.Item], arguments: Sequence[str]) -> bool:
    """Whether all tests of all laws were collected, before ``-k`` and the tier chose among them."""
    files = ("::" in argument or argument.endswith(".py") or ".test_" in argument for argument in arguments)
    return not any(files) and {item.path.parent.name for item in items} >= PARTS
