"""report.html: what a reader finds, with and without JavaScript, whatever the names hold."""

import re
import sys
from html.parser import HTMLParser
from random import random

import pytest

from kvproof_reports import curves
from kvproof_reports.curves import MOST_ROWS
from kvproof_reports.extras import MissingExtra
from kvproof_reports.html import render_html, write_html
from kvproof_reports.records import read_run
from kvproof_reports.samples import sample_fields

HOSTILE = "<script>alert(7)</script>\"'&{{7*7}}"


class Page(HTMLParser):
    """The text that is seen, as a whole and by section, the tags in order, and all addresses."""

    def __init__(self, source):
        super().__init__()
        self.words, self.tags, self.links, self._hidden, self._section = [], [], [], 0, ""
        self._by_section = {}
        self.feed(source)
        self.text = joined(self.words)
        self.sections = {name: joined(words) for name, words in self._by_section.items()}

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
        self._hidden += tag in ("script", "style")
        if tag == "section":
            self._section = dict(attributes)["id"]

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self.words.append(data)
            self._by_section.setdefault(self._section, []).append(data)


def joined(words):
    return re.sub(r"\s+", " ", " ".join(words)).strip()


@pytest.fixture
def page(build):
    return Page(render_html([read_run(build("a").everything())]))


def test_verdicts_counts_and_gaps_come_first(page):
    for words in (
        "torch conforms",
        "4 verified 1 refused",
        "triton broken",
        "breaks G18",
        "refused torch , 1 test: declares no fp8",
        "not run contiguous , 1 test: needs a CUDA device",
        "not timed triton : runs in Triton's interpreter on this machine",
    ):
        assert words in page.sections["verdict"]


def test_the_winner_of_a_workload_stands_on_the_first_screen_with_what_it_lies_between(page):
    assert (
        "churned table torch , block size 256: 1,730 tokens/s [1,570 to 1,820, quartiles]" in page.sections["verdict"]
    )


def test_a_broken_cell_opens_reason_and_counterexample(page):
    assert "largest error ÷ bound 37.5" in page.text
    assert "position 17 was read twice (sequence 0, block 1, slot 1)" in page.text
    assert "Case(block_size=16, context_lens=[18], seed=3)" in page.text
    assert page.tags.count("details") == 8  # six cells, and the numbers behind two plots


def test_a_cell_counts_the_tests_that_came_out_as_its_mark_says(build):
    run = build("a")
    for law, outcomes in (("G01", ["broken", "verified", "refused"]), ("G18", ["verified", "refused"])):
        for number, outcome in enumerate(outcomes):
            run.law(law, "torch", outcome, test=f"{number}", reason=None if outcome == "verified" else "because")
    text = Page(render_html([read_run(run.writer.folder)])).sections["laws"]
    assert re.findall(r"(✗|✓) (\d+(?: of \d+)?) G", text) == [("✗", "1 of 3"), ("✓", "1 of 2")]


def test_what_is_not_available_is_named_in_a_line_and_has_no_card_and_no_column(build):
    run = build("a")
    run.session(implementations=[{"name": "torch"}, {"name": "flash-attn", "unavailable": "needs a CUDA device"}])
    run.law("G01", "torch")
    run.end()
    page = Page(render_html([read_run(run.writer.folder)]))

    assert page.tags.count("article") == 1
    assert "Not available on this machine: flash-attn. Why stands below." in page.sections["verdict"]
    assert "not run flash-attn : needs a CUDA device" in page.sections["verdict"]
    assert "flash-attn" not in page.sections["laws"]


def test_a_cell_tells_the_most_memory_that_its_tests_held_on_the_device_where_there_is_one(build):
    run = build("a")
    run.law("G01", "torch", peak_bytes=1_000_000_000)
    run.law("G01", "torch", test="other", peak_bytes=2_500_000_000)
    run.law("G01", "triton", peak_bytes=1_000_000_000, peak_device_bytes=500_000_000)
    text = Page(render_html([read_run(run.writer.folder)])).text
    assert "at most 2.50 GB of memory" in text
    assert "at most 0.500 GB of memory" in text


def test_a_cell_tells_each_broken_test_but_a_shared_refusal_once(build):
    run = build("a")
    for test in ("x", "y"):
        run.law("G01", "torch", "broken", test=test, reason="same reason")
        run.law("G01", "torch", "refused", test=f"{test}8", reason="no fp8")

    panel = Page(render_html([read_run(run.writer.folder)])).text.split("2 broken, 2 refused")[1]

    assert panel.count("same reason") == 2
    assert "test_law[x8] and 1 more no fp8" in panel


def test_every_number_is_there_without_javascript(page):
    assert "torch identity 1,000 909 to 1,050 1,330" in page.sections["throughput"]
    assert "torch identity 16 1,330 3.00 2.85 3.30 50 11.2 25.0 44.8 % 0.0200 verified" in page.sections["throughput"]


def test_what_was_not_timed_says_why_and_what_the_compiler_says(page):
    section = page.sections["untimed"]

    assert "triton : runs in Triton's interpreter on this machine" in section
    assert "sm_90 168 0 34,816 4" in section


def test_paged_and_contiguous_stand_side_by_side(page):
    assert "paged 16 4,096 4.0 % 31.5 48 3" in page.sections["replay"]
    assert "contiguous 16 4,096 71.0 % 9.20 13 0" in page.sections["replay"]


def test_the_file_stands_alone_and_is_small(build, tmp_path):
    path = write_html([read_run(build("a").everything())], tmp_path / "report.html")

    assert {link[0] for link in Page(path.read_text(encoding="utf-8")).links if link != "data:,"} == {"#"}
    assert path.stat().st_size < 6e6


def test_a_page_of_as_many_rows_as_it_may_show_stays_under_six_megabytes(build):
    """By what a row weighs, since so many take long to draw; the names are as long as real ones."""

    def weight(num_batches):
        run = build(f"{num_batches}")
        for batch in range(num_batches):
            for table in ("dense", "identity", "shuffled", "churned"):
                for block_size in (1, 8, 16, 32, 64, 128, 256):
                    median_ms = 1 + random() / 10
                    samples = {"low_ms": median_ms - random() / 20, "high_ms": median_ms + random() / 20}
                    run.decode("flash-attn", table, block_size, median_ms, batch=batch + 1, tax=random(), **samples)
        return len(render_html([read_run(run.writer.folder)]).encode())

    # From 1,120 rows on, of which the page shows 1,000.
    light, heavy = weight(40), weight(60)
    a_row = (heavy - light) / (20 * 28)
    assert heavy + a_row * (MOST_ROWS - 60 * 28) < 6e6


def test_what_one_page_cannot_hold_is_left_out_and_counted(build, monkeypatch):
    monkeypatch.setattr(curves, "MOST_ROWS", 5)
    run = build("a")
    for batch in (1, 2):
        for cache in ("cold", "hot"):
            for block_size in (16, 32):
                run.decode(block_size=block_size, batch=batch, cache=cache)

    page = Page(render_html([read_run(run.writer.folder)]))

    assert "2 more workloads than one page can hold" in page.text
    assert "2 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu, cold" in page.sections["throughput"]
    assert "hot" not in page.sections["throughput"]
    assert "2 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu, hot" in page.sections["verdict"]


def test_hostile_names_stay_text(build):
    plain = Page(render_html([read_run(build("a").everything())]))
    source = render_html([read_run(build("b", HOSTILE).everything())])
    hostile = Page(source)

    assert "<script>alert(7)" not in source
    assert hostile.tags == plain.tags
    assert f"torch{HOSTILE}" in hostile.text
    assert "&lt;script&gt;alert(7)" in source


def test_a_lone_surrogate_in_a_reason_does_not_stop_the_report(build, tmp_path):
    run = build("a")
    run.law("G01", "torch", "broken", reason="got \udcff")

    path = write_html([read_run(run.writer.folder)], tmp_path / "report.html")

    assert "got \\udcff" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "figures", [{"q3_ms": 0}, {"q3_ms": 5e-324}, {"num_flops": 10**100}, {"samples_ms": [5e-324, 1e100] * 200}]
)
def test_figures_that_no_machine_has_measured_do_not_stop_the_report(build, figures):
    run = build("run")
    run.session()
    run.decode("torch", median_ms=2.0, **figures)
    assert "torch" in render_html([read_run(run.writer.folder)])


def test_a_row_whose_laws_are_not_verified_is_stamped(build):
    run = build("a")
    run.decode(block_size=16)
    run.decode(block_size=32, verified=False)

    text = Page(render_html([read_run(run.writer.folder)])).sections["throughput"]

    assert re.search(r"torch identity 2,000 [^a-z]* to 2,110 2,000 [^a-z]* to 2,110 not verified: 32 decode", text)
    assert re.findall(r"torch identity (\d+) .*? (verified|not verified) decode", text.split("Every number")[1]) == [
        ("16", "verified"),
        ("32", "not verified"),
    ]


def test_several_runs_are_merged_with_ratios(build):
    runs = [read_run(build("a").everything()), read_run(build("b").everything(speed=2.0))]

    page = Page(render_html(runs))

    assert "torch @ a" in page.text
    assert "torch @ b" in page.text
    assert "3.00 1.50 0.500" in page.sections["runs"]
    assert "torch @ b , block size 256" in page.sections["verdict"]


def test_a_run_beside_another_says_faster_slower_same_or_cannot_tell_under_one_condition(build):
    runs = []
    for name, factor in (("a", 1.0), ("b", 1.5)):
        run = build(name)
        for cache in ("cold", "hot"):
            samples = [(factor if cache == "cold" else 1.0) * (1 + 0.001 * (index % 7)) for index in range(40)]
            run.decode("torch", cache=cache, mode="eager", **sample_fields(samples))
        runs.append(read_run(run.writer.folder))

    text = Page(render_html(runs)).sections["runs"]

    assert re.search(r"cold, eager identity 16 1.00 1.50 1.50 1.49\d to 1.50\d slower", text)
    assert re.search(r"hot, eager identity 16 1.00 1.00 1.00 0.99\d to 1.00\d same", text)


def test_a_reason_links_to_public_reports_and_to_https_alone(build):
    run = build("a")
    run.law(
        "G18", "torch", "known_broken", reason="see owner/name#12 and https://example.org/a, not http://example.org"
    )

    links = Page(render_html([read_run(run.writer.folder)])).links

    assert [link for link in links if link.startswith("http")] == [
        "https://github.com/owner/name/issues/12",
        "https://example.org/a",
    ]


def test_what_a_law_prevents_is_told_where_the_caller_knows_it(build):
    run = build("a")
    run.law("G18", "torch")
    about = {"G18": {"title": "needle", "why": "A token is lost.", "origin": "owner/name#7"}}

    page = Page(render_html([read_run(run.writer.folder)], about))

    assert "G18 needle A token counts once" in page.sections["laws"]
    assert "Prevents: A token is lost. Seen in: owner/name#7" in page.sections["laws"]


def test_the_environment_tells_first_what_differs_between_runs(build):
    one, two = build("a"), build("b")
    one.session()
    two.session(environment={**one.session()["environment"], "torch": "9.9"})

    page = Page(render_html([read_run(one.writer.folder), read_run(two.writer.folder)]))

    assert "a b torch 2.13.0 9.9 Python 3.11.7" in page.sections["environment"]


def test_a_run_without_benchmarks_carries_no_plot_library(build):
    run = build("a")
    run.session()
    run.law("G01", "torch")

    assert len(render_html([read_run(run.writer.folder)])) < 50_000


@pytest.mark.parametrize("module", ["jinja2", "plotly.offline"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(build, monkeypatch, module):
    run = read_run(build("a").everything())
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingExtra, match=r"pip install 'kvproof\[report\]'"):
        render_html([run])
