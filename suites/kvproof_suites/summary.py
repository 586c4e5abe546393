"""The end of a run in words: what was verified, refused, known broken, not run, and where the records lie."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

OUTCOMES = {
    "verified": "verified",
    "broken": "broken",
    "error": "error",
    "refused": "refused by declaration",
    "known_broken": "known broken",
    "not_run": "not run here",
}


def verdict(counts: Mapping[str, int], num_benchmarks: int, exit_code: int) -> str:
    told = ", ".join(f"{counts[key]} {word}" for key, word in OUTCOMES.items() if counts.get(key))
    if counts.get("broken") or counts.get("error"):
        return f"does not conform: {told}"
    if counts.get("verified"):
        return f"conforms: {told}" if exit_code == 0 else f"no verdict (exit code {exit_code}): {told}"
    if num_benchmarks:
        return f"{num_benchmarks} benchmark rows, no law was run"
    return f"nothing was verified: {told or 'no law applied to these implementations'}"


def print_summary(terminal: pytest.TerminalReporter, laws: list[dict[str, Any]], conclusion: str, folder: Path) -> None:
    terminal.section("kvproof", sep="=")
    by_implementation: dict[str, Counter[str]] = defaultdict(Counter)
    for record in laws:
        by_implementation[record["implementation"]][record["outcome"]] += 1
    for name, counts in by_implementation.items():
        terminal.write_line(f"{name}: " + ", ".join(f"{counts[k]} {word}" for k, word in OUTCOMES.items() if counts[k]))
    print_reasons(terminal, laws)
    print_slowest(terminal, laws)
    terminal.write_line(f"verdict: {conclusion}", bold=True)
    terminal.write_line(f"records: {folder / 'results.jsonl'}")


def print_reasons(terminal: pytest.TerminalReporter, laws: list[dict[str, Any]]) -> None:
    reasons = Counter(
        (record["implementation"], record["outcome"], record["reason"])
        for record in laws
        if record["outcome"] in ("refused", "known_broken", "not_run")
    )
    for (name, outcome, reason), count in sorted(reasons.items()):
        terminal.write_line(f"  {name}: {count} {OUTCOMES[outcome]}: {reason}")


def print_slowest(terminal: pytest.TerminalReporter, laws: list[dict[str, Any]], shown: int = 10) -> None:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for record in laws:
        seconds[record["implementation"], record["law"]] += record["seconds"]
    slowest = sorted(seconds.items(), key=lambda entry: -entry[1])[:shown]
    if slowest:
        told = ", ".join(f"{law} {name} {spent:.1f} s" for (name, law), spent in slowest)
        terminal.write_line(f"slowest laws: {told}")
