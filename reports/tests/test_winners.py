"""Who is fastest: only of what is verified and breaks nothing, and only as sure as the samples are."""

import pytest

from kvproof_reports.records import read_run
from kvproof_reports.samples import sample_fields
from kvproof_reports.verdict import subjects
from kvproof_reports.winners import winners

STEADY = [1.0 + 0.001 * (index % 7) for index in range(40)]


def found(run):
    return winners(subjects([read_run(run.writer.folder)]))


def timed(run, implementation, factor, block_size=16, **changes):
    fields = sample_fields([factor * sample for sample in STEADY])
    rate = {"tokens_per_second": 4e3 / fields["median_ms"]}
    run.decode(implementation, "churned", block_size, **{**fields, **rate, **changes})


def test_the_winner_has_its_best_block_size_and_its_lead_an_interval(build):
    run = build("a")
    timed(run, "slow", 1.5)
    timed(run, "fast", 1.2, block_size=16)
    timed(run, "fast", 1.0, block_size=64)

    (winner,) = found(run)

    assert (winner.label, winner.block_size, winner.second, winner.answer) == ("fast", 64, "slow", "faster")
    assert winner.told.low <= 1.5 <= winner.told.high
    assert winner.words.startswith("1.50 times as fast as slow [")
    assert winner.figure.low <= 4e3 / 1.003 <= winner.figure.high


@pytest.mark.parametrize(("factor", "words"), [(1.001, "the same as b within 3 %"), (1.03, "can't tell: 1.03 times")])
def test_a_lead_within_the_threshold_is_no_lead(build, factor, words):
    run = build("a")
    timed(run, "a", 1.0)
    timed(run, "b", factor)

    assert found(run)[0].words.startswith(words)


def test_a_lead_without_waits_for_a_core_says_so_for_the_rates_beside_it_hold_them(build):
    run = build("a")
    for implementation, factor in (("slow", 2.0), ("fast", 1.0)):
        core = [factor * sample for sample in STEADY]
        fields = sample_fields([sample + 3.0 for sample in core], core_ms=core)
        run.decode(implementation, **fields, threads=1, waited=0.6)

    assert found(run)[0].words.startswith("2.00 times as fast as slow, less waits for a core, [")


def test_without_samples_nothing_is_told_of_the_lead(build):
    run = build("a")
    run.decode("a", median_ms=1.0)
    run.decode("b", median_ms=2.0)

    (winner,) = found(run)

    assert winner.answer == "can't tell"
    assert winner.words.startswith("can't tell: 2.00 times as fast as b by the medians, but the run kept no samples")


def test_what_is_not_verified_or_breaks_a_law_cannot_win(build):
    run = build("a")
    timed(run, "unverified", 0.1, verified=False)
    timed(run, "torch", 0.2)
    run.law("G18", "torch", "broken", reason="reads a foreign block")
    timed(run, "right", 1.0)

    assert [(winner.label, winner.words) for winner in found(run)] == [("right", "no other was timed")]


def test_the_state_of_the_block_table_is_the_one_nearest_to_an_engine(build):
    run = build("a")
    run.decode("a", "dense", median_ms=0.1)
    run.decode("a", "shuffled", median_ms=1.0)
    run.decode("b", "shuffled", median_ms=0.9)

    assert [(winner.label, winner.table) for winner in found(run)] == [("b", "shuffled")]


def test_allocators_are_compared_by_what_their_rows_are_for(build):
    run = build("a")
    run.serving("slow", ns_per_append=80.0)
    run.serving("fast", ns_per_append=40.0)
    run.allocator("fast", "append")

    served, called = found(run)

    assert (served.label, served.figure.value, served.unit) == ("fast", 40.0, "ns an append")
    assert served.words == "can't tell: 2.00 times as fast as slow by the medians, but 3 repeats tell too little"
    assert (called.figure.value, called.unit) == (pytest.approx(210.0), "ns a token")
