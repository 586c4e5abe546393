"""What a gate is strict about: one action for each rule, from a TOML file, with exceptions for an implementation.

    [law_broken]            # a test of a law that held in the baseline, or is new, is broken
    action = "fail"

    [coverage_lost]         # a test or a benchmark that ran in the baseline does not run now
    action = "fail"

    [slower]                # a benchmark is slower than the threshold allows, with confidence
    action = "fail"
    threshold = 0.03        # as a share
    confidence = 0.95       # of the whole gate, however many benchmarks it compares

    [ambiguous]             # whether a benchmark is slower can't be told
    action = "warn"

    [implementation.torch.slower]
    action = "off"

What is not given is as above.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof_reports.bounded import TOML_BYTES, read_text
from kvproof_reports.statistics import CONFIDENCE, THRESHOLD

FAIL, WARN, OFF = ACTIONS = ("fail", "warn", "off")
LAW_BROKEN, COVERAGE_LOST, SLOWER, AMBIGUOUS = RULES = ("law_broken", "coverage_lost", "slower", "ambiguous")

DEFAULT_ACTIONS: Mapping[str, str] = {LAW_BROKEN: FAIL, COVERAGE_LOST: FAIL, SLOWER: FAIL, AMBIGUOUS: WARN}


class RulesError(ValueError):
    """A rules file that can't be followed. The text names file, table and key."""


@dataclass(frozen=True)
class Rules:
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rule to its keys, as in the file."""
    exceptions: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Implementation to the same."""

    def action(self, rule: str, implementation: str) -> str:
        return str(self._value(rule, "action", implementation, DEFAULT_ACTIONS[rule]))

    def threshold(self, implementation: str) -> float:
        return float(self._value(SLOWER, "threshold", implementation, THRESHOLD))

    @property
    def confidence(self) -> float:
        return float(self.given.get(SLOWER, {}).get("confidence", CONFIDENCE))

    def _value(self, rule: str, key: str, implementation: str, default: Any) -> Any:
        exception = self.exceptions.get(implementation, {}).get(rule, {})
        return exception.get(key, self.given.get(rule, {}).get(key, default))


def read_rules(path: Path) -> Rules:
    """The rules in ``path``.

    Raises:
        RulesError: no such file, not TOML, or a table, key or value that means nothing.
    """
    try:
        document = tomllib.loads(read_text(path, TOML_BYTES))
    except (OSError, ValueError, RecursionError) as error:  # of which TOMLDecodeError is but one
        raise RulesError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    _check_keys(f"{path}", document, (*RULES, "implementation"))
    exceptions = _table(f"{path}: [implementation]", document.pop("implementation", {}))
    given = {rule: _rule(f"{path}: [{rule}]", rule, table) for rule, table in document.items()}
    return Rules(given, {name: _exceptions(path, name, tables) for name, tables in exceptions.items()})


def _exceptions(path: Path, implementation: str, tables: Any) -> dict[str, Mapping[str, Any]]:
    where = f"{path}: [implementation.{implementation}]"
    _check_keys(where, _table(where, tables), RULES)
    return {rule: _rule(f"{where[:-1]}.{rule}]", rule, table, exception=True) for rule, table in tables.items()}


def _rule(where: str, rule: str, table: Any, exception: bool = False) -> Mapping[str, Any]:
    keys = ("action", "threshold", "confidence") if rule == SLOWER else ("action",)
    _check_keys(where, _table(where, table), [key for key in keys if not (exception and key == "confidence")])
    if table.get("action", FAIL) not in ACTIONS:
        raise RulesError(f"{where}: action {table['action']!r} is not one of {', '.join(ACTIONS)}")
    for key, highest in (("threshold", 1.0), ("confidence", 0.9999)):
        value = table.get(key, 0.5)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= highest:
            raise RulesError(f"{where}: {key} {value!r} is not a share above 0 and up to {highest:g}, such as 0.05")
    return dict(table)


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RulesError(f"{where}: {value!r} is not a table")
    return value


def _check_keys(where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise RulesError(f"{where}: unknown key {key!r}; {hint}")
