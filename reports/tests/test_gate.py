"""A run against a baseline: what is found, what is not, and what several runs make together."""

import pytest

from kvproof_reports.baseline import BaselineError
from kvproof_reports.gate import judge, share_of_look
from kvproof_reports.gate_rules import Rules
from kvproof_reports.records import read_run
from kvproof_reports.samples import sample_fields

STEADY = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97, 2.0, 2.0]
NOISY = [2.0, 2.6, 1.7, 2.9, 1.6, 2.2, 1.8, 2.4, 2.0, 2.5]


class Case:
    """A baseline and a run of one implementation, with the same session."""

    def __init__(self, build):
        self.before, self.after = build("before"), build("after")
        for run in (self.before, self.after):
            run.session()

    def both(self, what, *arguments, **fields):
        for run in (self.before, self.after):
            getattr(run, what)(*arguments, **fields)

    def timed(self, before, after, **changes):
        for run, samples in ((self.before, before), (self.after, after)):
            run.decode("torch", **{**sample_fields(samples), **changes})

    def judge(self, rules=None, first=(), more=(), **options):
        runs = [read_run(run.writer.folder) for run in (*first, self.after, *more)]
        return judge(read_run(self.before.writer.folder), runs, rules or Rules(), **options)


@pytest.fixture
def case(build):
    return Case(build)


def found(gate):
    return [(finding.rule, finding.action, finding.implementation, finding.where) for finding in gate.findings]


def test_an_unchanged_run_passes_with_everything_counted(case):
    for test in ("fp16", "fp32"):
        case.both("law", "G01", "torch", test=test)
    case.timed(STEADY, STEADY)

    gate = case.judge()

    assert (gate.failed, found(gate)) == (False, [])
    assert gate.unchanged == {("torch", "G01"): 2}
    assert gate.verdict == "passes: 2 tests and 1 benchmark compared"


@pytest.mark.parametrize("now", ["broken", "known_broken"])
def test_a_law_that_held_and_does_not_now_fails(case, now):
    case.before.law("G18", "torch")
    case.after.law("G18", "torch", now, reason="position 17 was read twice\nmore")
    case.both("law", "G18", "torch", test="other")

    gate = case.judge()

    assert (gate.failed, found(gate)) == (True, [("law_broken", "fail", "torch", "G18")])
    told = "1 test newly broken; known broken: " if now == "known_broken" else "1 test newly broken; "
    assert gate.findings[0].what == f"{told}position 17 was read twice"
    assert gate.unchanged == {("torch", "G18"): 1}


def test_a_new_test_that_is_broken_fails(case):
    case.both("law", "G01", "torch")
    case.after.law("G18", "torch", "broken", reason="wrong")

    assert found(case.judge()) == [("law_broken", "fail", "torch", "G18")]


def test_a_law_that_was_broken_before_does_not_fail_and_is_told(case):
    case.both("law", "G18", "torch", "broken", reason="wrong")
    case.before.law("G01", "torch", "broken", reason="wrong")
    case.after.law("G01", "torch")

    gate = case.judge()

    assert not gate.failed
    assert gate.verdict == "passes: 2 tests and 0 benchmarks compared, 1 still broken, 1 mended"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("refused", "refused: says no"),
        ("not_run", "not run: says no"),
        ("error", "error: says no"),
        (None, "it is not in the run"),
    ],
)
@pytest.mark.parametrize("before", ["verified", "broken"])
def test_a_test_that_ran_and_does_not_now_is_coverage_lost(case, before, outcome, told):
    case.both("law", "G01", "torch")
    case.before.law("G18", "torch", before, reason="as it was")
    if outcome:
        case.after.law("G18", "torch", outcome, reason="says no")

    gate = case.judge()

    assert found(gate) == [("coverage_lost", "fail", "torch", "G18")]
    assert gate.findings[0].what == f"1 test no longer run; {told}"


@pytest.mark.parametrize("before", ["refused", "not_run", "error"])
def test_a_test_that_never_ran_is_no_coverage_lost(case, before):
    case.both("law", "G01", "torch")
    case.before.law("G18", "torch", before, reason="says no")

    assert found(case.judge()) == []


def test_a_benchmark_that_was_timed_and_is_not_now_is_coverage_lost(case):
    case.timed(STEADY, STEADY)
    case.before.decode("torch", block_size=32)
    case.before.decode("torch", block_size=64)
    case.after.untimed("torch", block_size=32)

    gate = case.judge()

    assert found(gate) == [("coverage_lost", "fail", "torch", "decode")]
    assert gate.findings[0].what.startswith("2 benchmarks no longer timed; decode, 4 sequences")
    assert gate.findings[0].what.endswith("block size 32, identity: runs in Triton's interpreter on this machine")


def test_an_implementation_that_is_gone_is_coverage_lost_unless_only_others_are_asked_for(case):
    case.both("law", "G01", "torch")
    case.before.law("G01", "triton")

    assert found(case.judge()) == [("coverage_lost", "fail", "triton", "G01")]
    assert found(case.judge(names=["torch"])) == []


def test_a_name_that_neither_knows_is_refused(case):
    case.both("law", "G01", "torch")

    with pytest.raises(BaselineError, match=r"no implementation 'torhc' .*; did you mean 'torch'\?"):
        case.judge(names=["torhc"])


def test_a_slower_benchmark_fails_and_a_faster_one_passes(case):
    case.timed(STEADY, [1.1 * sample for sample in STEADY])
    case.timed(STEADY, [0.9 * sample for sample in STEADY], block_size=32)

    gate = case.judge()

    ((rule, action, implementation, where),) = found(gate)
    assert (rule, action, implementation) == ("slower", "fail", "torch")
    assert where.endswith("block size 16, identity")
    assert gate.findings[0].what.startswith("2.00 → 2.20 ms, × 1.100 (1.0")
    assert [one.told.answer for one in gate.compared] == ["slower", "faster"]


def test_what_can_not_be_told_warns_and_is_unsettled(case):
    case.timed(NOISY, NOISY[::-1])
    case.timed(STEADY, STEADY, block_size=32)

    gate = case.judge()

    assert [finding[:2] for finding in found(gate)] == [("ambiguous", "warn")]
    assert not gate.failed
    assert [one.where for one in gate.unsettled] == [gate.findings[0].where]


def test_what_is_the_same_or_faster_and_never_slower_is_settled(case):
    case.timed(NOISY, [0.55 * sample for sample in NOISY])
    case.timed([2.0, 2.1, 1.9] * 4, [1.95, 2.02, 1.82] * 4, block_size=32)

    gate = case.judge()

    assert [one.told.answer for one in gate.compared] == ["faster", "can't tell"]
    assert (found(gate), gate.unsettled) == ([], [])


def test_what_is_slower_in_one_process_is_unsettled_until_another_says_so_too(case, build):
    slower = [1.2 * sample for sample in STEADY]
    case.timed(STEADY, slower)
    again = build("again")
    again.session()
    again.decode("torch", **sample_fields(slower))

    alone, confirmed = case.judge(), case.judge(more=[again])

    assert (alone.failed, len(alone.unsettled)) == (True, 1)
    assert (confirmed.failed, len(confirmed.unsettled)) == (True, 0)


def test_one_of_many_that_is_slower_by_chance_is_ambiguous(case):
    samples = [2.0, 2.2, 1.8, 2.1, 1.9, 2.15, 1.85, 2.05, 1.95, 2.0] * 2
    slower = [1.08 * sample for sample in samples]
    case.timed(samples, slower)
    assert [finding[0] for finding in found(case.judge())] == ["slower"]

    for block_size in range(1, 16):
        case.timed(STEADY, STEADY, block_size=block_size)

    (finding,) = case.judge().findings
    assert finding.rule == "ambiguous"
    assert "slower by itself, as one of 16 benchmarks may look by chance" in finding.what


def test_a_look_before_the_last_one_needs_more_to_say_slower(case):
    samples = [2.0, 2.2, 1.8, 2.1, 1.9, 2.15, 1.85, 2.05, 1.95, 2.0] * 2
    case.timed(samples, [1.08 * sample for sample in samples])

    (early,), (last,) = (
        case.judge(share=share_of_look(1, 21)).findings,
        case.judge(share=share_of_look(21, 21)).findings,
    )

    assert (early.rule, last.rule) == ("ambiguous", "slower")
    assert "slower by itself, as may look by chance where more looks follow" in early.what


def test_times_without_waits_for_a_core_are_told_as_such(case):
    for run, factor, wait in ((case.before, 1.0, 9.0), (case.after, 1.1, 0.0)):
        core = [factor * sample for sample in STEADY]
        run.decode("torch", **sample_fields([one + wait for one in core], core_ms=core), threads=1)

    (finding,) = case.judge().findings

    assert (finding.rule, finding.action) == ("slower", "fail")
    assert finding.what.startswith("11.0 → 2.20 ms, × 1.100 less waits for a core (1.0")


def test_rules_decide_by_rule_and_by_implementation(case):
    case.both("law", "G01", "torch")
    case.timed(STEADY, [1.2 * sample for sample in STEADY])
    case.before.law("G18", "torch")
    lenient = Rules({"coverage_lost": {"action": "off"}}, {"torch": {"slower": {"action": "warn"}}})

    gate = case.judge(lenient)

    assert (gate.failed, [finding[:2] for finding in found(gate)]) == (False, [("slower", "warn")])
    assert found(case.judge(Rules({"slower": {"threshold": 0.3}, "coverage_lost": {"action": "off"}}))) == []


@pytest.mark.parametrize("comes_last", [True, False])
def test_several_runs_count_as_one_with_the_worst_outcome_and_all_samples(case, build, comes_last):
    case.both("law", "G01", "torch")
    case.timed(STEADY, STEADY)
    again = build("again")
    again.session()
    again.law("G01", "torch", "broken", reason="now and then")
    again.decode("torch", **sample_fields([1.3 * sample for sample in STEADY]))

    gate = case.judge(more=[again] if comes_last else (), first=() if comes_last else [again])

    assert ("law_broken", "fail", "torch", "G01") in found(gate)
    (compared,) = gate.compared
    assert compared.after["samples_per_process"] == [10, 10]
    assert compared.told.answer == "can't tell"  # the two processes don't agree


def test_a_test_is_the_same_wherever_pytest_found_it(case):
    case.both("law", "G18", "torch", test="other")
    for run, start in ((case.before, ""), (case.after, "../site-packages/kvproof_suites/kernel/")):
        run.writer.write(
            "law",
            law="G01",
            sentence="s",
            test=f"{start}test_needle.py::test[torch]",
            implementation="torch",
            outcome="verified",
            seconds=0.1,
        )

    assert found(case.judge()) == []
