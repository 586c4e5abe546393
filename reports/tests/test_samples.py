"""From samples to a record, and from several records of one benchmark to one."""

import pytest

from kvproof_reports.records import read_run
from kvproof_reports.samples import processes_of, sample_fields, together, without_waits
from kvproof_reports.schema import MOST_SAMPLES

TEN = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0, 2.2, 1.8, 2.01, 1.99]


def test_a_record_of_samples_holds_them_in_order_with_median_quartiles_and_interval():
    fields = sample_fields(TEN)
    assert fields["samples_ms"] == TEN
    assert (fields["median_ms"], fields["q1_ms"], fields["q3_ms"]) == pytest.approx((2.0, 1.96, 2.04))
    assert fields["low_ms"] < 2.0 < fields["high_ms"]
    assert (fields["num_samples"], fields["samples_per_process"]) == (10, None)


def test_too_few_samples_have_no_interval():
    fields = sample_fields([1.0, 2.0, 3.0])
    assert (fields["median_ms"], fields["low_ms"], fields["high_ms"]) == (2.0, None, None)


def test_many_samples_are_thinned_evenly_and_still_counted():
    samples = [1 + i / 1000 for i in range(1000)]
    fields = sample_fields(samples, processes=[600, 400])
    assert fields["num_samples"] == 1000
    assert fields["samples_per_process"] == [200, 200]
    assert len(fields["samples_ms"]) == MOST_SAMPLES
    assert fields["samples_ms"][:2] == [1.0, 1.003]
    assert fields["samples_ms"][200] == 1.6
    assert sample_fields(samples, processes=[900, 100])["samples_per_process"] == [180, 100]


def test_records_of_several_processes_become_one_with_all_samples_and_figures_made_anew(build):
    run = build("a")
    for factor in (1.0, 1.2):
        rates = {"tokens_per_second": 4000.0 / factor, "tax": 0.1, "waited": factor / 10}
        run.decode(**{**sample_fields([factor * one for one in TEN]), **rates})
    merged = together(read_run(run.writer.folder).records)
    assert (merged["num_samples"], processes_of(merged)) == (20, [10, 10])
    assert 2.0 < merged["median_ms"] < 2.4
    assert merged["tokens_per_second"] == pytest.approx(8000.0 / merged["median_ms"])
    assert (merged["tax"], merged["waited"]) == (None, pytest.approx(0.11))


def recorded(build, name, elapsed, core, processes=None):
    run = build(name)
    run.decode(**sample_fields(elapsed, processes, core))
    return read_run(run.writer.folder).records[0]


def test_times_without_waits_are_those_of_calm_samples_where_every_process_has_some(build):
    disturbed = [9.0, 2.5]
    calm = recorded(build, "calm", [*TEN, *disturbed, *TEN], [*TEN, 2.4, 2.4, *TEN], [11, 11])
    assert calm["core_ms"][10:12] == [2.4, 2.4]
    assert without_waits([calm, calm]) == [(TEN * 2, [10, 10])] * 2


def test_a_process_that_was_hardly_ever_calm_is_left_out_where_another_was(build):
    one_of_two = recorded(build, "busy", [*TEN, *TEN[:5], *[9.0] * 5], TEN * 2, [10, 10])
    assert without_waits([one_of_two])[0] == (TEN, [10])


def test_where_no_process_of_one_side_was_calm_all_times_without_waits_count_on_both(build):
    calm = recorded(build, "calm", [9.0, *TEN], [2.4, *TEN])
    busy = recorded(build, "busy", [2 * one for one in TEN], TEN)
    assert without_waits([calm, busy]) == [([2.4, *TEN], [11]), (TEN, [10])]


def test_where_one_does_not_know_its_waits_there_are_no_times_without(build):
    assert without_waits([recorded(build, "a", TEN, TEN), recorded(build, "b", TEN, None)]) is None


def test_a_process_that_does_not_know_its_waits_leaves_them_unknown_for_all(build):
    run = build("a")
    run.decode(**sample_fields(TEN, core_ms=TEN))
    run.decode(**sample_fields(TEN))
    assert together(read_run(run.writer.folder).records)["core_ms"] is None
    run.decode(**sample_fields(TEN, core_ms=TEN))
    assert together(read_run(run.writer.folder).records[::2])["core_ms"] == TEN * 2


def test_a_record_without_samples_adds_none(build):
    run = build("a")
    run.decode(**sample_fields(TEN))
    run.decode(median_ms=5.0)
    assert together(read_run(run.writer.folder).records)["median_ms"] == pytest.approx(2.0)
