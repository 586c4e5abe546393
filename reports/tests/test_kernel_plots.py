"""The plots of kernels: which lines, which bands, and no markup from a name."""

import pytest

from kvproof_reports.curves import charts
from kvproof_reports.kernel_plots import facets, plan_plot, roofline_plot, throughput_plot
from kvproof_reports.plot import GREY, colours, log_axis
from kvproof_reports.records import read_run
from kvproof_reports.verdict import subjects


def found(run):
    columns = subjects([read_run(run.writer.folder)])
    return charts(columns), [subject.label for subject in columns]


def lines_of(plot):
    return [trace for trace in plot.traces if "+markers" in trace["mode"] and trace["name"] != "memory roof"]


def bands_of(plot):
    return [trace for trace in plot.traces if trace.get("fill") == "toself"]


def test_a_line_for_each_implementation_and_table_along_the_block_size(build):
    run = build("a")
    for implementation, table, block_size in (
        ("torch", "shuffled", 32),
        ("torch", "shuffled", 16),
        ("torch", "dense", 16),
        ("other", "dense", 16),
    ):
        run.decode(implementation, table, block_size)

    assert [(line["name"], line["x"]) for line in lines_of(throughput_plot(*found(run)))] == [
        ("torch, dense", [16]),
        ("torch, shuffled", [16, 32]),
        ("other, dense", [16]),
    ]


def test_the_band_is_the_recorded_interval_turned_from_times_into_rates(build):
    run = build("a")
    for block_size in (16, 32):
        run.decode(block_size=block_size, median_ms=2.0, q1_ms=1.6, q3_ms=2.5, tokens_per_second=1000.0)

    (band,) = bands_of(throughput_plot(*found(run)))

    assert band["x"] == [16, 32, 32, 16]
    assert band["y"] == pytest.approx([1250, 1250, 800, 800])


def test_one_choice_of_table_leaves_one_line_for_each_implementation(build):
    run = build("a")
    for table in ("identity", "churned"):
        run.decode("torch", table)
        run.decode("other", table)
    drawn, labels = found(run)
    table = facets(drawn)[1]

    shown = [x for x in lines_of(throughput_plot(drawn, labels)) if x["facets"]["table"] == table.index("churned")]

    assert table.chosen == "churned"
    assert [line["name"] for line in shown] == ["torch, churned", "other, churned"]


def test_markup_in_a_name_is_shown_as_text(build):
    run = build("a", hostile="<b>&")
    run.decode()

    assert lines_of(throughput_plot(*found(run)))[0]["name"] == "torch&lt;b&gt;&amp;, identity"


def test_shapes_that_differ_are_not_drawn_together(build):
    run = build("a")
    run.decode(batch=4)
    run.decode(batch=8)
    drawn, labels = found(run)

    assert [chart.title.partition(" of")[0] for chart in drawn] == ["decode, 4 sequences", "decode, 8 sequences"]
    assert [line["facets"]["workload"] for line in lines_of(throughput_plot(drawn, labels))] == [0, 1]


def test_the_roof_line_is_the_rate_at_which_the_share_would_be_one(build):
    run = build("a")
    run.decode(tokens_per_second=1000.0, share_of_roof=0.4)

    roof = next(trace for trace in throughput_plot(*found(run)).traces if trace.get("name") == "memory roof")

    assert (roof["x"], roof["y"]) == ([16], [pytest.approx(2500.0)])


def test_a_dot_lies_under_the_roof_by_its_share(build):
    run = build("a")
    run.decode(median_ms=2.0, gb_per_second=10.0, roof_gb_per_second=25.0)

    dots, slope = roofline_plot(*found(run)).traces

    # 4 sequences x 1,024 keys x 32 heads x 128 channels x 4 FLOP in 2 ms; 10 GB/s for 2 ms are 20 MB.
    assert dots["y"] == [pytest.approx(4 * 1024 * 32 * 128 * 4 / 2e-3 / 1e9)]
    assert dots["x"] == [pytest.approx(4 * 1024 * 32 * 128 * 4 / 20e6)]
    assert slope["y"][0] / slope["x"][0] == pytest.approx(25.0)


def test_plans_stand_beside_launches_and_without_plans_there_is_no_plot(build):
    with_plan, without = build("a"), build("b")
    with_plan.decode(plan_ms=0.02, median_ms=2.0)
    without.decode(plan_ms=None)

    launch, plan = lines_of(plan_plot(*found(with_plan)))

    assert (launch["y"], plan["y"]) == ([2.0], [0.02])
    assert plan_plot(*found(without)) is None


def test_plotly_accepts_every_trace_and_layout(build):
    graph = pytest.importorskip("plotly.graph_objects")
    drawn = found(build_everything(build))
    for plot in (throughput_plot(*drawn), roofline_plot(*drawn), plan_plot(*drawn)):
        for trace in plot.traces:
            graph.Figure([{name: value for name, value in trace.items() if name != "facets"}])
        graph.Figure(layout=dict(plot.layout))


def build_everything(build):
    run = build("whole")
    run.everything()
    return run


def test_a_logarithmic_axis_names_one_two_and_five():
    assert log_axis("ms", [0.3, 4])["ticktext"] == ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50"]


def test_no_implementation_has_the_colour_of_the_roof():
    assert GREY not in colours([str(number) for number in range(50)]).values()
