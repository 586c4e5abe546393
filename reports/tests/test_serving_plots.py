"""Plots of allocators: dots for calls, bars for appends, each with what it lies between."""

import pytest

from kvproof_reports.host_tables import append_times, call_facets, call_times
from kvproof_reports.records import read_run
from kvproof_reports.serving_plots import appends_plot, calls_plot
from kvproof_reports.verdict import subjects


@pytest.fixture
def columns(build):
    run = build("a")
    run.allocator("paged", "append", 16)
    run.allocator("paged", "free", 16)
    run.allocator("paged", "append", 128)
    run.serving("paged", ns_per_append=60.0, spread={"ns_per_append": [55.0, 70.0]})
    return subjects([read_run(run.writer.folder)])


def test_calls_are_dots_in_microseconds_under_a_selector_of_the_block_size(columns):
    plot = calls_plot(call_times(columns), ["paged"])

    assert [(trace["y"], trace["x"], trace["facets"]) for trace in plot.traces] == [
        (["append", "free"], [pytest.approx(210), pytest.approx(210)], {"blocks": 0}),
        (["append"], [pytest.approx(210)], {"blocks": 1}),
    ]
    assert plot.traces[1]["error_x"]["array"] == [pytest.approx(20)]
    assert call_facets(columns)[0].values == ["16", "128"]


def test_appends_are_bars_from_the_fastest_to_the_slowest_repeat(columns):
    (bars,) = appends_plot(append_times(columns), ["paged"]).traces

    assert bars["orientation"] == "h"
    assert (bars["y"], bars["x"]) == (["serve, 30% shared"], [60.0])
    assert (bars["error_x"]["arrayminus"], bars["error_x"]["array"]) == ([5.0], [10.0])


def test_plotly_accepts_both_and_nothing_gives_no_plot(columns):
    graph = pytest.importorskip("plotly.graph_objects")
    for plot in (calls_plot(call_times(columns), ["paged"]), appends_plot(append_times(columns), ["paged"])):
        graph.Figure([{name: value for name, value in trace.items() if name != "facets"} for trace in plot.traces])
        graph.Figure(layout=dict(plot.layout))

    assert calls_plot([], []) is None
    assert appends_plot([], []) is None
