"""The two sides of a block size, multiplied."""

import pytest

from kvproof_reports.capacity import capacities
from kvproof_reports.curves import charts
from kvproof_reports.records import read_run
from kvproof_reports.serving_plots import capacity_plot, side_choice, side_facets, sides_plot
from kvproof_reports.two_sides import NUM_LAYERS, best_sizes, two_sides
from kvproof_reports.verdict import subjects


def columns_of(run):
    return subjects([read_run(run.writer.folder)])


def sides_of(run):
    columns = columns_of(run)
    return two_sides(charts(columns), capacities(columns))


def replayed(run, block_size, mean_running, implementation="paged", tokens=65536):
    run.replay(implementation, mean_running=mean_running, block_size=block_size, num_blocks=tokens // block_size)


@pytest.fixture
def run(build):
    """A kernel that gains from large blocks, and a memory that loses by them."""
    run = build("a")
    for block_size, median_ms, mean_running in ((16, 2.0, 40.0), (64, 1.0, 36.0), (256, 0.9, 10.0)):
        run.decode("torch", "churned", block_size, median_ms=median_ms, low_ms=median_ms * 0.9, high_ms=median_ms * 1.1)
        replayed(run, block_size, mean_running)
    return run


def test_tokens_per_second_are_sequences_over_the_time_of_a_step(run):
    one = next(sides for sides in sides_of(run) if sides.share == 0.5)

    # Attention takes half of a step of the measured batch of 4 at block size 16: the rest takes 2 ms a layer as well.
    rest_ms = NUM_LAYERS * 2.0
    assert one.tokens_per_second[16].value == pytest.approx(1e3 * 40 / (rest_ms + 40 * NUM_LAYERS * 2.0 / 4))
    assert one.tokens_per_second[64].value == pytest.approx(1e3 * 36 / (rest_ms + 36 * NUM_LAYERS * 1.0 / 4))
    assert one.kernel_us[64].value == pytest.approx(250.0)


def test_the_layers_are_those_of_the_model_that_was_named(build):
    rates = []
    for name, more in (("none", {}), ("small", {"num_layers": 16})):
        run = build(name)
        for block_size in (16, 64):
            run.decode("torch", "churned", block_size, **more)
            replayed(run, block_size, 40.0)
        rates.append(sides_of(run)[0].tokens_per_second[16].value)

    assert rates[1] == pytest.approx(rates[0] * NUM_LAYERS / 16)


def test_the_interval_of_the_rate_is_that_of_the_launch(run):
    one = next(sides for sides in sides_of(run) if sides.share == 0.5)

    rate = one.tokens_per_second[64]
    assert rate.low == pytest.approx(1e3 * 36 / (64.0 + 36 * NUM_LAYERS * 1.1 / 4))
    assert rate.high == pytest.approx(1e3 * 36 / (64.0 + 36 * NUM_LAYERS * 0.9 / 4))


def test_the_best_block_size_is_neither_the_fastest_kernel_nor_the_most_sequences(run):
    (best,) = best_sizes(sides_of(run))

    assert best.best == 64
    assert best.alike == []


def test_block_sizes_whose_intervals_meet_are_named_as_alike(build):
    run = build("a")
    for block_size, median_ms in ((16, 1.05), (32, 0.9), (64, 2.0)):
        run.decode("torch", "churned", block_size, median_ms=median_ms, low_ms=median_ms * 0.9, high_ms=median_ms * 1.1)
        replayed(run, block_size, 40.0)

    (best,) = best_sizes(sides_of(run))

    assert (best.best, best.alike) == (32, [16])


def test_the_less_of_a_step_attention_takes_the_more_capacity_counts(run):
    best = {
        sides.share: sides.tokens_per_second[256].value / sides.tokens_per_second[16].value for sides in sides_of(run)
    }

    assert best[0.25] < best[0.5] < best[0.75]


def test_pools_of_another_size_and_unverified_rows_are_not_multiplied(build):
    run = build("a")
    for block_size in (16, 64):
        run.decode("torch", "churned", block_size)
        run.decode("wrong", "churned", block_size, verified=False)
        replayed(run, block_size, 40.0, tokens=4096 * block_size)
    assert sides_of(run) == []

    for block_size in (16, 64):
        replayed(run, block_size, 40.0)
    assert {sides.kernel for sides in sides_of(run)} == {"torch"}


def test_the_plot_has_a_panel_for_each_side_and_a_star_at_the_best(run):
    sides = sides_of(run)
    plot = sides_plot(sides, ["torch", "paged"])

    assert {trace.get("yaxis", "y") for trace in plot.traces} == {"y", "y2", "y3"}
    stars = [trace for trace in plot.traces if trace.get("marker", {}).get("symbol") == "star"]
    assert [(star["x"], star["facets"]) for star in stars] == [
        ([one.best], side_choice(side_facets(sides), one)) for one in sides
    ]


def test_capacity_is_drawn_against_block_size_only_where_there_are_two(build, run):
    alone = build("b")
    replayed(alone, 16, 40.0)

    assert capacity_plot(capacities(columns_of(alone)), ["paged"]) is None
    drawn = capacity_plot(capacities(columns_of(run)), ["torch", "paged"])
    assert [(line["x"], line["y"]) for line in drawn.traces if line["facets"]["measure"] == 0] == [
        ([16, 64, 256], [40.0, 36.0, 10.0])
    ]


def test_plotly_accepts_every_trace(run):
    graph = pytest.importorskip("plotly.graph_objects")
    columns = columns_of(run)

    for plot in (sides_plot(sides_of(run), ["torch", "paged"]), capacity_plot(capacities(columns), ["torch", "paged"])):
        graph.Figure([{name: value for name, value in trace.items() if name != "facets"} for trace in plot.traces])
        graph.Figure(layout=dict(plot.layout))
