"""From records to a verdict: what each implementation verified, broke or was spared, and the matrix of laws."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof_reports.records import Run
from kvproof_reports.schema import IMPLEMENTATION, OUTCOMES

CONFORMS, BROKEN, KNOWN_BROKEN = "conforms", "broken", "broken as declared"
NOT_SETTLED, NOTHING_VERIFIED, NOT_AVAILABLE = "not settled", "nothing verified", "not available"

WORST_FIRST = ("broken", "error", "known_broken", "verified", "refused", "not_run")
"""Which outcome stands for several: one broken case breaks a law; a verified case outweighs those that never ran."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """One implementation in one run; a column of every table."""

    label: str
    """Its name; with the run when several runs hold that name."""
    name: str
    run_label: str
    """The run's id, told apart from another run of the same id."""
    run: Run
    about: Record
    """Its entry in the session record; every field None without one."""
    laws: Sequence[Record]
    benchmarks: Sequence[Record]
    replays: Sequence[Record]

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.laws)

    @property
    def verdict(self) -> str:
        return NOT_AVAILABLE if self.about["unavailable"] and not self.laws else verdict(self.counts)

    @property
    def broken_laws(self) -> list[str]:
        """Ids, those known to be broken included, in the order they ran."""
        return list(dict.fromkeys(r["law"] for r in self.laws if r["outcome"] in ("broken", "known_broken")))


@dataclass(frozen=True)
class Cell:
    """A law and a subject."""

    outcome: str
    """The worst."""
    records: Sequence[Record]

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.records)

    @property
    def number(self) -> str:
        """``9``, or ``9 of 37`` where other tests of the law came out otherwise."""
        worst = self.counts[self.outcome]
        return f"{worst:,}" if worst == len(self.records) else f"{worst:,} of {len(self.records):,}"

    @property
    def error_to_bound(self) -> float | None:
        return self._largest("error_to_bound")

    @property
    def peak_bytes(self) -> int | None:
        """Of the device where there is one, else of the process."""
        return self._largest("peak_device_bytes") or self._largest("peak_bytes")

    def _largest(self, name: str) -> Any:
        return max((record[name] for record in self.records if record[name] is not None), default=None)


@dataclass
class LawRow:
    law: str
    sentence: str
    cells: dict[str, Cell] = field(default_factory=dict)
    """By subject label; a law that a subject never met has no cell."""


def counts(laws: Iterable[Record]) -> dict[str, int]:
    """Tests for each outcome, zeros included."""
    found = Counter(record["outcome"] for record in laws)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def verdict(found: Mapping[str, int]) -> str:
    """One word for the counts of one implementation. What was not verified is never called conforming."""
    if found["broken"]:
        return BROKEN
    if found["error"]:
        return NOT_SETTLED
    if found["known_broken"]:
        return KNOWN_BROKEN
    return CONFORMS if found["verified"] else NOTHING_VERIFIED


def subjects(runs: Sequence[Run]) -> list[Subject]:
    """Every implementation of every run, in the order selected; runs given twice count once."""
    distinct = list({run.path.resolve(): run for run in runs}.values())
    labels = _run_labels(distinct)
    names = {label: _names(run) for label, run in labels.items()}
    clashes = Counter(name for found in names.values() for name in found)
    return [
        replace(subject, label=f"{subject.name} @ {run_label}" if clashes[subject.name] > 1 else subject.name)
        for run_label, run in labels.items()
        for subject in _of_run(run_label, run, names[run_label])
    ]


def judged(columns: Sequence[Subject]) -> list[Subject]:
    """Those that were to be judged or timed; an allocator that a trace was only replayed through has no verdict."""
    return [one for one in columns if one.about["name"] is not None or one.laws or one.benchmarks]


def _run_labels(runs: Sequence[Run]) -> dict[str, Run]:
    labels: dict[str, Run] = {}
    for run in runs:
        number = sum(other.run_id == run.run_id for other in labels.values())
        labels[f"{run.run_id} ({number + 1})" if number else run.run_id] = run
    return labels


def _about(run: Run) -> dict[str, Record]:
    return {entry["name"]: entry for session in run.latest("session") for entry in session["implementations"]}


def _names(run: Run) -> list[str]:
    used = [record["implementation"] for kind in ("law", "benchmark", "replay") for record in run.latest(kind)]
    return list(dict.fromkeys([*_about(run), *used]))


def _of_run(run_label: str, run: Run, names: Sequence[str]) -> list[Subject]:
    """Each record is looked at once, however many implementations there are."""
    about, of_kind = _about(run), [_by_name(run, kind) for kind in ("law", "benchmark", "replay")]
    unknown = dict.fromkeys(IMPLEMENTATION)
    return [
        Subject(name, name, run_label, run, about.get(name, unknown), *(found.get(name, []) for found in of_kind))
        for name in names
    ]


def _by_name(run: Run, kind: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in run.latest(kind):
        found.setdefault(record["implementation"], []).append(record)
    return found


def matrix(columns: Sequence[Subject]) -> list[LawRow]:
    """Laws by family and number, each with a cell for every subject that met it.

    Not as they ran: workers that run side by side finish in an order that tells a reader nothing.
    """
    rows: dict[str, LawRow] = {}
    for subject in columns:
        by_law: dict[str, list[Record]] = {}
        for record in subject.laws:
            by_law.setdefault(record["law"], []).append(record)
            rows.setdefault(record["law"], LawRow(record["law"], record["sentence"]))
        for law, records in by_law.items():
            outcomes = {record["outcome"] for record in records}
            worst = next(outcome for outcome in WORST_FIRST if outcome in outcomes)
            rows[law].cells[subject.label] = Cell(worst, records)
    return sorted(rows.values(), key=lambda row: (row.law[:1], int(re.sub(r"\D", "", row.law) or 0)))


def not_verified(
    subject: Subject, outcomes: Sequence[str] = ("error", "refused", "not_run")
) -> list[tuple[str, str, int]]:
    """What was not settled by running it: (outcome, reason, tests), most tests first."""
    found = Counter((r["outcome"], r["reason"]) for r in subject.laws if r["outcome"] in outcomes)
    gaps = [(outcome, reason, number) for (outcome, reason), number in found.most_common()]
    if subject.about["unavailable"]:
        gaps.insert(0, ("not_run", subject.about["unavailable"], 0))
    return gaps


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know about the runs themselves: torn lines, runs that never reached their end, and half a run:
    laws without a benchmark, or the other way round."""
    found = [f"{run.run_id}: {note}" for run in runs for note in run.notes]
    found += [f"{run.run_id}: the run did not reach its end" for run in runs if _unfinished(run)]
    return found + _without(runs, "law", "benchmark") + _without(runs, "benchmark", "law")


def _without(runs: Sequence[Run], kind: str, other: str) -> list[str]:
    lacking = [run.run_id for run in runs if run.latest(other) and not run.latest(kind)]
    where = f"{', '.join(lacking)}: " if any(run.latest(kind) for run in runs) else ""
    return [f"{where}no {kind} was run"] if lacking else []


def _unfinished(run: Run) -> bool:
    """True when a session began after the last end."""
    marks = [record["kind"] for record in run.records if record["kind"] in ("session", "end")]
    return not marks or marks[-1] != "end"
