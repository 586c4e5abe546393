"""Benchmarks side by side: only the same work is compared."""

import pytest

from kvproof_reports.compare import compare_implementations, compare_runs
from kvproof_reports.records import read_run


def runs_of(*builders):
    return [read_run(builder.writer.folder) for builder in builders]


def test_two_runs_of_one_implementation_meet_in_one_row(build):
    before, after = build("before"), build("after")
    before.decode("torch", median_ms=2.0)
    after.decode("torch", median_ms=1.5)

    comparison = compare_runs(runs_of(before, after))

    assert comparison.columns == ["before", "after"]
    (row,) = comparison.rows
    assert row.workload["implementation"] == "torch"
    assert row.median_ms == {"before": 2.0, "after": 1.5}
    assert row.ratio == {"before": 1.0, "after": 0.75}


@pytest.mark.parametrize("change", [{"block_size": 32}, {"table": "churned"}, {"dtype": "bfloat16"}, {"batch": 8}])
def test_another_shape_is_another_row_and_has_no_ratio(build, change):
    before, after = build("before"), build("after")
    before.decode("torch")
    after.decode("torch", **change)

    first, second = compare_runs(runs_of(before, after)).rows

    assert first.ratio == {"before": 1.0}
    assert second.ratio == {}


def test_implementations_of_one_run_meet_in_one_row(build):
    run = build("a")
    run.decode("torch", median_ms=2.0)
    run.decode("other", median_ms=3.0)

    (row,) = compare_implementations(runs_of(run)).rows

    assert row.ratio == {"torch": 1.0, "other": 1.5}
    assert "implementation" not in row.workload


def test_a_row_without_figures_is_not_compared(build):
    run = build("a")
    run.untimed()

    assert compare_runs(runs_of(run)).rows == []
