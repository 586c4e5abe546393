"""A run against a baseline: laws newly broken, coverage lost, benchmarks slower with confidence, and what is unclear.

Many benchmarks are compared at once, and among many some look slower by chance. A benchmark that is slower at the
confidence of the gate by itself, and is not once that is shared out among all of them (Bonferroni), is ambiguous.

A gate that times again what it can't tell looks more than once, and each look may be wrong. Of the chance to be wrong,
1 less its confidence, half belongs to the last look, as if it were the only one; the other half is shared out among
those before (``share_of_look``). So what is no slower than the threshold fails no more often than the confidence says,
however often the gate looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproof_reports.answers import Told, tell
from kvproof_reports.baseline import require_comparable, require_known
from kvproof_reports.figures import figure, plural
from kvproof_reports.gate_cells import RAN, Cells, Key, Record, cells_of
from kvproof_reports.gate_rules import AMBIGUOUS, COVERAGE_LOST, FAIL, LAW_BROKEN, OFF, SLOWER, WARN, Rules
from kvproof_reports.records import Run
from kvproof_reports.samples import processes_of
from kvproof_reports.statistics import CANT_TELL
from kvproof_reports.statistics import SLOWER as IS_SLOWER
from kvproof_reports.workload import shape_title

FAILED = ("broken", "known_broken")
EARLY = "slower by itself, as may look by chance where more looks follow"


@dataclass(frozen=True)
class Finding:
    """Something that a rule is about."""

    rule: str
    action: str
    implementation: str
    where: str
    """A law, or a benchmark."""
    what: str
    tests: tuple[str, ...] = ()
    """Node ids, where it is about tests."""


@dataclass(frozen=True)
class Compared:
    """A benchmark that both have timed."""

    implementation: str
    where: str
    before: Record
    after: Record
    told: Told
    threshold: float

    @property
    def may_be_slower(self) -> bool:
        """It can't be told; where it can't be told whether it is the same or faster, there is nothing to fear."""
        high = self.told.high
        return self.told.answer == CANT_TELL and (high is None or high > 1 + self.threshold)

    @property
    def what(self) -> str:
        medians = f"{figure(self.before['median_ms'])} → {figure(self.after['median_ms'])} ms"
        factor = f"{medians}, × {self.told.ratio:.3f}{' less waits for a core' if self.told.less_waits else ''}"
        return f"{factor} ({self.told.interval})" if self.told.interval else factor


@dataclass(frozen=True)
class Gate:
    """What became of it."""

    findings: Sequence[Finding]
    compared: Sequence[Compared]
    unchanged: Mapping[tuple[str, str], int]
    """(implementation, law) to the number of its tests that nothing was found about."""
    also: Mapping[str, int]
    """What no rule is about, and a reader may want to know: still broken, mended, new benchmarks."""

    @property
    def failed(self) -> bool:
        return any(finding.action == FAIL for finding in self.findings)

    @property
    def verdict(self) -> str:
        num_tests = sum(self.unchanged.values()) + sum(len(finding.tests) for finding in self.findings)
        told = [f"{plural(num_tests, 'test')} and {plural(len(self.compared), 'benchmark')} compared"]
        for action, word in ((FAIL, "failure"), (WARN, "warning")):
            told += [plural(number, word)] if (number := sum(f.action == action for f in self.findings)) else []
        told += [f"{number:,} {what}" for what, number in self.also.items() if number]
        return f"{'FAILS' if self.failed else 'passes'}: {', '.join(told)}"

    @property
    def unsettled(self) -> list[Compared]:
        """What another process may decide: what may be slower, and what one process alone says is slower."""
        return [one for one in self.compared if one.may_be_slower or _unconfirmed(one)]


def _unconfirmed(one: Compared) -> bool:
    return one.told.answer == IS_SLOWER and len(processes_of(one.after)) == 1


def share_of_look(look: int, num_looks: int) -> float:
    """Of the chance that a two-sided interval is wrong, what look ``look`` of 1 to ``num_looks`` may use to say slower.
    An interval is wrong on that side half of the time, so that all looks together use as much as one interval has."""
    return 1.0 if look == num_looks else 1 / (num_looks - 1)


def judge(
    baseline: Run,
    runs: Sequence[Run],
    rules: Rules,
    *,
    names: Sequence[str] = (),
    any_machine: bool = False,
    share: float = 1.0,
) -> Gate:
    """Hold ``runs``, which count as one, against ``baseline``; of the implementations ``names`` alone, where given.

    Args:
        share: of the chance to be wrong, for this look.

    Raises:
        BaselineError: another machine or version (unless ``any_machine``), nothing in common, or an unknown name.
    """
    before, after = cells_of([baseline]), cells_of(runs)
    if names:
        require_known(names, before, after)
        before, after = before.only(names), after.only(names)
    require_comparable(baseline, runs, before, after, any_machine)
    compared = _compare(before.timed(), after.timed(), rules, share)
    findings = [*_laws(before, after, rules), *_benchmarks_lost(before, after, rules), *_timings(compared, rules)]
    shown = [finding for finding in findings if finding.action != OFF]
    return Gate(shown, compared, _unchanged(before, after), _also(before, after))


def _unchanged(before: Cells, after: Cells) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for key in before.tests.keys() & after.tests.keys():
        if _rule(before, after, key) is None:
            found[key[:2]] = found.get(key[:2], 0) + 1
    return dict(sorted(found.items()))


def _also(before: Cells, after: Cells) -> dict[str, int]:
    changes = [(_outcome(before, key), _outcome(after, key)) for key in after.tests]
    return {
        "still broken": sum(was == now == "broken" for was, now in changes),
        "mended": sum(was == "broken" and now == "verified" for was, now in changes),
        "new benchmarks": len(after.timed().keys() - before.timed().keys()),
    }


def _outcome(cells: Cells, key: Key) -> str | None:
    return cells.tests[key]["outcome"] if key in cells.tests else None


def _rule(before: Cells, after: Cells, key: Key) -> str | None:
    """The rule that the change of one test is about."""
    was, now = _outcome(before, key), _outcome(after, key)
    if now in FAILED and was not in FAILED:
        return LAW_BROKEN
    return COVERAGE_LOST if was in RAN and now not in RAN else None


def _laws(before: Cells, after: Cells, rules: Rules) -> Iterator[Finding]:
    """One finding for each rule, implementation and law, in the order in which they ran."""
    found: dict[tuple[str, str, str], list[Key]] = {}
    for key in dict.fromkeys([*before.tests, *after.tests]):
        if (rule := _rule(before, after, key)) is not None:
            found.setdefault((rule, *key[:2]), []).append(key)
    for (rule, name, law), keys in found.items():
        verb = "newly broken" if rule == LAW_BROKEN else "no longer run"
        what = f"{plural(len(keys), 'test')} {verb}; {_why(after, keys[0])}"
        tests = [(after.tests.get(key) or before.tests[key])["test"] for key in keys]
        yield Finding(rule, rules.action(rule, name), name, law, what, tuple(tests))


def _why(after: Cells, key: Key) -> str:
    if key not in after.tests:
        return "it is not in the run"
    record = after.tests[key]
    outcome = "" if record["outcome"] == "broken" else f"{record['outcome'].replace('_', ' ')}: "
    return f"{outcome}{_first_line(record['reason'])}"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:200]


def _benchmarks_lost(before: Cells, after: Cells, rules: Rules) -> Iterator[Finding]:
    """One for each implementation and group."""
    lost: dict[tuple[str, str], list[str]] = {}
    for key, record in before.timed().items():
        if key not in after.timed():
            now = after.benchmarks.get(key)
            reason = _first_line(now["reason"]) if now else "it is not in the run"
            lost.setdefault((key[0], record["group"]), []).append(f"{title(record)}: {reason}")
    for (name, group), told in lost.items():
        what = f"{plural(len(told), 'benchmark')} no longer timed; {told[0]}"
        yield Finding(COVERAGE_LOST, rules.action(COVERAGE_LOST, name), name, group, what)


def _compare(before: Mapping[Key, Record], after: Mapping[Key, Record], rules: Rules, share: float) -> list[Compared]:
    shared = [key for key in before if key in after]
    strict = 1 - share * (1 - rules.confidence) / max(1, len(shared))
    return [_compared(key[0], before[key], after[key], rules, strict, len(shared)) for key in shared]


def _compared(name: str, before: Record, after: Record, rules: Rules, strict: float, number: int) -> Compared:
    threshold = rules.threshold(name)
    told = tell(before, after, threshold, rules.confidence)
    if told.answer == IS_SLOWER and tell(before, after, threshold, strict).answer != IS_SLOWER:
        why = f"slower by itself, as one of {plural(number, 'benchmark')} may look by chance" if number > 1 else EARLY
        told = replace(told, answer=CANT_TELL, why=why)
    return Compared(name, title(after), before, after, told, threshold)


def _timings(compared: Sequence[Compared], rules: Rules) -> Iterator[Finding]:
    for one in compared:
        if one.told.answer == IS_SLOWER or one.may_be_slower:
            rule = SLOWER if one.told.answer == IS_SLOWER else AMBIGUOUS
            what = f"{one.what}; {one.told.why}" if one.told.why else one.what
            yield Finding(rule, rules.action(rule, one.implementation), one.implementation, one.where, what)


def title(record: Mapping[str, Any]) -> str:
    """A benchmark for people: ``decode, 4q1s1k, heads 32/8, ..., block size 16, shuffled``."""
    named = record["operation"] and f"{record['group']}, {record['operation']}, {record['device']}"
    told = [named or shape_title(record), f"block size {record['block_size']}", record["table"]]
    return ", ".join(part for part in (*told, record["cache"], record["mode"]) if part)
