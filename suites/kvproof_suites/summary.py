"""The end of a run in words: what was verified, refused, known broken or not run, what took long, where it all lies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports.appending import Appender
from kvproof_suites.expectations import STATUSES

OUTCOMES = {
    "verified": "verified",
    "broken": "broken",
    "error": "error",
    "refused": "refused by declaration",
    "known_broken": "known broken",
    "not_run": "not run here",
}
MAX_LINES = 20
"""Of the list of reasons; the records have all of them."""

Laws = list[dict[str, Any]]


def verdict(counts: Mapping[str, int], num_benchmarks: int, exit_code: int, least: int = 0) -> str:
    told = ", ".join(f"{counts[key]} {word}" for key, word in OUTCOMES.items() if counts.get(key))
    if counts.get("broken") or counts.get("error"):
        return f"does not conform: {told}"
    if 0 < counts.get("verified", 0) < least:
        return f"verified too little: {told}; --min-verified asks for {least}"
    if counts.get("verified"):
        return f"conforms: {told}" if exit_code == 0 else f"no verdict (exit code {exit_code}): {told}"
    if num_benchmarks:
        return f"{num_benchmarks} benchmark rows, no law was run"
    return f"nothing was verified: {told or 'no law applied to these implementations'}"


def print_summary(terminal: pytest.TerminalReporter, laws: Laws, conclusion: str, folder: Path) -> None:
    """Short, and shorter with ``-q`` where there is a verdict; coloured on a terminal only."""
    terminal.section("kvproof", sep="=")
    if terminal.verbosity >= 0 or not any(record["outcome"] == "verified" for record in laws):
        lines = [*counts_of(laws), *reasons(laws), *errors_to_bounds(laws), *slowest(laws), *largest(laws)]
        for line in lines:
            terminal.write_line(line)
    good = conclusion.startswith("conforms")
    terminal.write_line(f"verdict: {conclusion}", bold=True, green=good, red=not good)
    terminal.write_line(f"records: {folder / 'results.jsonl'}")


def counts_of(laws: Laws) -> Iterable[str]:
    """A line for each implementation; what is known broken by the words that its author gave it."""
    by_implementation: dict[str, Counter[str]] = defaultdict(Counter)
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    for record in laws:
        by_implementation[record["implementation"]][record["outcome"]] += 1
        if record["outcome"] == "known_broken":
            statuses[record["implementation"]][record["reason"].partition(": ")[0]] += 1
    for name, counts in by_implementation.items():
        kinds = ", ".join(f"{statuses[name][status]} {status}" for status in STATUSES if statuses[name][status])
        words = OUTCOMES | {"known_broken": f"known broken ({kinds})"}
        yield f"{name}: " + ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])


def reasons(laws: Laws) -> Iterable[str]:
    """Of each implementation and outcome the commonest first."""
    counted = Counter(
        (record["implementation"], record["outcome"], record["reason"])
        for record in laws
        if record["outcome"] in ("refused", "known_broken", "not_run")
    )
    commonest = sorted(counted.items(), key=lambda item: (item[0][:2], -item[1], item[0]))
    for (name, outcome, reason), count in commonest[:MAX_LINES]:
        yield f"  {name}: {count} {OUTCOMES[outcome]}: {reason}"
    if len(counted) > MAX_LINES:
        yield f"  and {len(counted) - MAX_LINES} more reasons in the records"


def errors_to_bounds(laws: Laws) -> Iterable[str]:
    """How near a right kernel comes to its bound."""
    verified = [record for record in laws if record["outcome"] == "verified" and record["error_to_bound"] is not None]
    if verified:
        nearest = max(verified, key=lambda record: record["error_to_bound"])
        yield (
            f"largest error ÷ bound of what was verified: {nearest['error_to_bound']:.2g} "
            f"({nearest['law']}, {nearest['implementation']})"
        )


def not_written(appender: Appender, error: OSError) -> str:
    """Of a disk that was full to the end: where the records are instead."""
    told = f"kvproof: {len(appender.waiting)} records are not in {appender.path}: {error.strerror}"
    try:
        elsewhere = appender.save_elsewhere()
    except OSError as other:
        return f"{told}; nor in the temporary folder: {other.strerror}; they are lost"
    return f"{told}; they are in {elsewhere}: make room, then `cat {elsewhere} >> {appender.path}`"


def slowest(laws: Laws, shown: int = 10) -> Iterable[str]:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for record in laws:
        seconds[record["implementation"], record["law"]] += record["seconds"]
    ranked = sorted(seconds.items(), key=lambda entry: -entry[1])[:shown]
    if ranked:
        told = ", ".join(f"{law} {name} {spent:.1f} s" for (name, law), spent in ranked)
        yield f"slowest laws: {told}; all {len(seconds)} took {sum(seconds.values()):.1f} s"


def largest(laws: Laws) -> Iterable[str]:
    """Of the host, and of a device where there is one."""
    for where, field in (("memory", "peak_bytes"), ("memory of the device", "peak_device_bytes")):
        if known := [record for record in laws if record[field] is not None]:
            most = max(known, key=lambda record: record[field])
            yield f"most {where} held: {most[field] / 1e9:.2f} GB ({most['law']} {most['implementation']})"
