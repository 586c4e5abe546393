"""report.html in a real browser: it loads quietly and offline, and what can be clicked works."""

import csv
import io
import re
import time

import pytest

from kvproof_reports.html import write_html
from kvproof_reports.records import read_run

HOSTILE = "<img src=x onerror=alert(7)><script>alert(7)</script>\"'&{{7*7}}</script>"

ROWS = "[...document.querySelectorAll('{} tbody tr')].filter(r => r.offsetParent).map(r => r.innerText.trim())"
LINES = "document.querySelector('#throughput .plot').data.filter(t => t.mode == 'lines+markers').map(t => t.name)"


@pytest.fixture
def written(build, tmp_path):
    """written(hostile="", plots=True) -> path of the report of a whole run; one without plots opens sooner"""

    def write(hostile="", plots=True):
        run = build("run", hostile)
        run.everything()
        for block_size in (16, 64):
            run.decode("fast", "churned", block_size, median_ms=1.0)
        path = write_html([read_run(run.writer.folder)], tmp_path / "report.html")
        return path if plots else without_plots(path)

    return write


def without_plots(path):
    path.write_text(re.sub(r'<script[^>]* id="plotly">[^<]*</script>', "", path.read_text()))
    return path


@pytest.mark.parametrize("look", [{}, {"dark": True, "width": 390}], ids=["light", "dark phone"])
def test_it_loads_without_a_complaint_and_without_a_network(written, tab, look):
    page = tab(**look).open(written())

    assert page.complaints() == []
    assert [address for address in page.requests() if not address.startswith(("data:", "file:", "blob:"))] == []
    assert page.js("document.querySelectorAll('.plot .main-svg').length") >= 3
    assert page.js("document.documentElement.scrollWidth") <= look.get("width", 1180)


def test_hostile_names_run_nothing_and_stay_text(written, tab):
    page = tab().open(written(HOSTILE))

    assert page.complaints() == []
    assert page.js("document.querySelectorAll('img').length") == 0
    assert f"torch{HOSTILE}, churned" in page.js("document.querySelector('#throughput .plot .legend').textContent")
    assert page.js("document.querySelector('.card h2').textContent") == f"torch{HOSTILE}"


def test_the_selector_of_the_block_table_chooses_lines_and_rows(written, tab):
    page = tab().open(written())
    rows = ROWS.format("#throughput table[data-name=throughput]")

    assert page.js(LINES) == ["torch, churned", "fast, churned", "memory roof"]
    page.choose("#throughput select[name=table]", "dense")
    assert page.js(LINES) == ["torch, dense", "memory roof"]
    assert [row.split("\t")[:2] for row in page.js(rows)] == [["torch", "dense"]]
    page.choose("#throughput select[name=table]", "all states")
    assert len(page.js(rows)) == 5
    assert page.js("document.querySelector('#roofline select[name=table]').selectedOptions[0].text") == "churned"


def test_a_choice_that_another_leaves_nothing_of_moves_on_to_what_was_timed(build, tab, tmp_path):
    run = build("run")
    run.decode("a", "churned", batch=1)
    for table in ("shuffled", "identity"):
        run.decode("a", table, batch=2)
    page = tab().open(write_html([read_run(run.writer.folder)], tmp_path / "report.html"))

    page.choose(
        "#throughput select[name=workload]", page.js("document.querySelector('select[name=workload]').options[1].text")
    )

    assert page.js(LINES) == ["a, shuffled", "memory roof"]
    offered = "[...document.querySelector('#throughput select[name=table]').options].map(o => [o.text, o.disabled])"
    assert page.js(offered) == [["all states", False], ["churned", True], ["shuffled", False], ["identity", False]]


def test_a_click_on_a_heading_sorts_by_the_figures_and_another_turns_it_round(written, tab):
    page = tab().open(written(plots=False))
    rows = ROWS.format("#replay")
    heading = "#replay th[data-name=waste] button"

    page.click(heading)
    assert [row.split("\t")[0] for row in page.js(rows)] == ["contiguous", "paged"]
    page.click(heading)
    assert [row.split("\t")[0] for row in page.js(rows)] == ["paged", "contiguous"]
    assert page.js("document.querySelector('#replay th[data-name=waste]').ariaSort") == "ascending"


def test_numbers_are_sorted_by_size_and_not_by_how_they_are_written(written, tab):
    page = tab().open(written(plots=False))
    page.choose("#throughput select[name=table]", "dense")
    page.js("document.querySelector('#throughput details').open = true")

    page.click("#throughput table[data-name=benchmarks] th[data-name=tokens_per_second] button")

    shown = [row.split("\t")[3] for row in page.js(ROWS.format("table[data-name=benchmarks]"))]
    assert shown == ["2,150", "2,090", "1,980", "1,780", "1,480", "1,110"]


def test_the_filter_keeps_the_rows_that_hold_the_word(written, tab):
    page = tab().open(written(plots=False))
    page.js("document.querySelector('#throughput details').open = true")
    page.choose("#throughput select[name=table]", "all states")
    page.js(
        "(() => { const i = document.querySelector('#throughput details input');"
        " i.value = 'FAST'; i.dispatchEvent(new Event('input')) })()"
    )

    assert len(page.js(ROWS.format("table[data-name=benchmarks]"))) == 2
    assert page.js("document.querySelector('#throughput details .tools .hint').textContent") == "2 of 26 rows"


def test_the_csv_holds_all_rows_with_six_digits_and_no_formula(build, tab, tmp_path):
    run = build("run")
    run.writer.write("session", **session_of("=1+1", "-5"))
    run.decode("=1+1", "dense", median_ms=1.23456789)
    run.decode("x", "churned", median_ms=2.0)
    page = tab().open(without_plots(write_html([read_run(run.writer.folder)], tmp_path / "report.html")))

    text = page.js("csv(document.querySelector('table[data-name=benchmarks]'))")
    rows = list(csv.DictReader(io.StringIO(text)))

    assert [(row["implementation"], row["median_ms"]) for row in rows] == [("'=1+1", "1.23457"), ("x", "2")]


def session_of(*names):
    return {
        "implementations": [{"name": name} for name in names],
        "tier": "smoke",
        "seed": 0,
        "device": "cpu",
        "command": [],
        "environment": {},
    }


def test_the_csv_button_saves_a_file(written, tab, tmp_path):
    page = tab()
    page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True)
    page.open(written(plots=False))

    page.click("#replay .tools button")

    saved = tmp_path / "kvproof-replays.csv"
    deadline = time.monotonic() + 60
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert saved.read_text().startswith("label,block_size,num_blocks")


def test_a_cell_of_the_matrix_opens_its_reason_and_escape_closes_it(written, tab):
    page = tab().open(written(plots=False))
    panel = "[document.querySelector('.cell.broken .panel')].map(p => p.offsetParent ? p.innerText : '')[0]"

    assert page.js(panel) == ""
    page.click(".cell.broken summary")
    assert "position 17 was read twice" in page.js(panel)
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert page.js(panel) == ""


def test_laws_can_be_narrowed_to_those_that_are_broken(written, tab):
    page = tab().open(written(plots=False))

    page.choose("#laws select", "broken")

    assert [row.split()[0] for row in page.js(ROWS.format("#laws"))] == ["G18"]


def test_without_javascript_text_and_tables_are_there_and_nothing_that_would_not_work(written, tab):
    page = tab(javascript=False).open(written(plots=False))

    seen = page.js("document.body.innerText")

    assert "broken as declared" in seen
    assert "tokens/s by block size" in seen
    assert page.js("[...document.querySelectorAll('.plot, .facets')].filter(e => e.offsetParent).length") == 0
    assert page.js("document.querySelectorAll('button, input').length") == 0


def test_print_is_black_on_white_and_fits_the_paper(written, tab):
    page = tab(dark=True).open(written())
    page.media(dark=True, kind="print")

    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.js("dispatchEvent(new Event('beforeprint'))")
    assert page.js("Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(e => e.clientWidth))") <= 680
