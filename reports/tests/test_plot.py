"""The plot: which lines, which bars, and no markup from a name."""

import json
import re

import pytest

from kvproof_reports.curves import charts
from kvproof_reports.plot import throughput_figure
from kvproof_reports.records import read_run
from kvproof_reports.verdict import subjects


def lines_of(run):
    columns = subjects([read_run(run.writer.folder)])
    (chart,) = charts(columns)
    source = throughput_figure(chart, [subject.label for subject in columns])
    data = re.search(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*(\[.*?\]),\s*\{", source, re.S)
    return json.loads(data[1])


def test_a_line_for_each_implementation_and_table_along_the_block_size(build):
    run = build("a")
    for implementation, table, block_size in (
        ("torch", "shuffled", 32),
        ("torch", "shuffled", 16),
        ("torch", "dense", 16),
        ("other", "dense", 16),
    ):
        run.decode(implementation, table, block_size)

    assert [(line["name"], line["x"]) for line in lines_of(run)] == [
        ("torch, dense", [16]),
        ("torch, shuffled", [16, 32]),
        ("other, dense", [16]),
    ]


def test_bars_reach_from_quartile_to_quartile_of_throughput(build):
    run = build("a")
    run.decode(median_ms=2.0, q1_ms=1.6, q3_ms=2.5, tokens_per_second=1000.0)

    (line,) = lines_of(run)

    assert line["y"] == [1000.0]
    assert line["error_y"]["array"] == [pytest.approx(250.0)]
    assert line["error_y"]["arrayminus"] == [pytest.approx(200.0)]


def test_markup_in_a_name_is_shown_as_text(build):
    run = build("a", hostile="<b>&")
    run.decode()

    assert lines_of(run)[0]["name"] == "torch&lt;b&gt;&amp;, identity"


def test_shapes_that_differ_are_not_drawn_together(build):
    run = build("a")
    run.decode(batch=4)
    run.decode(batch=8)

    assert [chart.title.partition(" of")[0] for chart in charts(subjects([read_run(run.writer.folder)]))] == [
        "decode, 4 sequences",
        "decode, 8 sequences",
    ]
