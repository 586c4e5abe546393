"""report.html: what a reader finds, with and without JavaScript, whatever the names hold."""

import re
import sys
from html.parser import HTMLParser

import pytest

from kvproof_reports.extras import MissingExtra
from kvproof_reports.html import render_html, write_html
from kvproof_reports.records import read_run

HOSTILE = "<script>alert(7)</script>\"'&{{7*7}}"


class Page(HTMLParser):
    """The visible text, the tags in order, and the panels behind <details>."""

    def __init__(self, source):
        super().__init__()
        self.words, self.tags, self.links, self._hidden = [], [], [], 0
        self.feed(source)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self.words.append(data)


@pytest.fixture
def page(build):
    return Page(render_html([read_run(build("a").everything())]))


def test_verdicts_counts_and_gaps_come_first(page):
    first_screen = page.text.split(" Laws ")[0]

    for words in (
        "torch conforms",
        "4 verified 1 refused",
        "triton broken",
        "breaks G18",
        "refused torch , 1 test: declares no fp8",
        "not run contiguous , 1 test: needs a CUDA device",
    ):
        assert words in first_screen


def test_a_broken_cell_opens_reason_and_counterexample(page):
    assert "largest error ÷ bound 37.5" in page.text
    assert "position 17 was read twice (sequence 0, block 1, slot 1)" in page.text
    assert "Case(block_size=16, context_lens=[18], seed=3)" in page.text
    assert page.tags.count("details") == 7  # six cells, and the numbers behind the chart


def test_a_cell_tells_each_broken_test_but_a_shared_refusal_once(build):
    run = build("a")
    for test in ("x", "y"):
        run.law("G01", "torch", "broken", test=test, reason="same reason")
        run.law("G01", "torch", "refused", test=f"{test}8", reason="no fp8")

    panel = Page(render_html([read_run(run.writer.folder)])).text.split("2 broken, 2 refused")[1]

    assert panel.count("same reason") == 2
    assert "test_law[x8] and 1 more no fp8" in panel


def test_every_number_is_there_without_javascript(page):
    chart = page.text.split(" Throughput against block size ")[1].split(" Allocator ")[0]

    assert "torch identity 1,000 1,330 1,600 1,780 1,880 1,940" in chart
    assert "torch identity 16 1,330 3.00 2.85 to 3.30 50 11.2 25.0 44.8 % 0.0200 verified" in chart


def test_what_was_not_timed_says_why_and_what_the_compiler_says(page):
    section = page.text.split(" Not timed ")[1].split(" Trace replay ")[0]

    assert "triton : runs in Triton's interpreter on this machine" in section
    assert "sm_90 168 0 34,816 4" in section


def test_paged_and_contiguous_stand_side_by_side(page):
    section = page.text.split(" Trace replay ")[1]

    assert "paged sample.jsonl 4,096 blocks of 16 4.0 % 31.5 48 3" in section
    assert "contiguous sample.jsonl 4,096 blocks of 16 71.0 % 9.20 13 0" in section


def test_the_file_stands_alone_and_is_small(build, tmp_path):
    path = write_html([read_run(build("a").everything())], tmp_path / "report.html")

    assert Page(path.read_text(encoding="utf-8")).links == ["data:,"]
    assert path.stat().st_size < 6e6


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


def test_a_row_whose_laws_are_not_verified_is_stamped(build):
    run = build("a")
    run.decode(block_size=16)
    run.decode(block_size=32, verified=False)

    text = Page(render_html([read_run(run.writer.folder)])).text

    assert "torch identity 2,000 2,000 † Every number" in text
    assert re.findall(r"torch identity (\d+) [^†]*? (verified|not verified) ", text.split("Every number")[1]) == [
        ("16", "verified"),
        ("32", "not verified"),
    ]


def test_several_runs_are_merged_with_ratios(build):
    runs = [read_run(build("a").everything()), read_run(build("b").everything(speed=2.0))]

    page = Page(render_html(runs))

    assert "torch @ a" in page.text
    assert "torch @ b" in page.text
    section = page.text.split(" Run against run ")[1]
    assert "3.00 1.50 0.500" in section


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
