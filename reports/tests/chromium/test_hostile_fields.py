"""A stranger's results in the report: markup in every text of the schema is shown as it is, and none of it runs."""

import json

import pytest

from kvproof_reports.html import write_html
from kvproof_reports.markdown import write_markdown
from kvproof_reports.records import read_run
from kvproof_reports.schema import COMMON, KINDS

RAN = "window.ran=(window.ran||0)+1"
HOSTILE = (
    f"<img src=x onerror='{RAN}'><svg onload='{RAN}'><script>{RAN}</script></script></textarea></style>-->"
    f"<a href='javascript:{RAN}' onmouseover='{RAN}'>a</a><iframe srcdoc='<script>parent.{RAN}</script>'></iframe>"
    f"\"' onfocus='{RAN}' autofocus x=\"{{{{7*7}}}}{{% raw %}}https://example.org/'onclick='{RAN} \u2028]]>"
)
FOREIGN = "document.querySelectorAll('img, iframe, [onerror], [onload], [onclick], [onmouseover], [onfocus]').length"
LINKS = (
    "[...document.querySelectorAll('a')].map(a => a.href.baseVal ?? a.href).filter(h => /^javascript/i.test(h)).length"
)


def hostile(table, record, where=""):
    """The record with HOSTILE behind every text that may be any; the names of the fields where it stands."""
    found, changed = dict(record), set()
    for name, field in table.items():
        value = record.get(name)
        if field.fields is not None and value is not None:
            several = value if isinstance(value, list) else [value]
            pairs = [hostile(field.fields, item, f"{where}{name}.") for item in several]
            found[name] = [item for item, _ in pairs] if isinstance(value, list) else pairs[0][0]
            changed.update(*(names for _, names in pairs))
        elif field.type in ("text", "name") and not field.choices and name not in ("kind", "record_id"):
            if value is None and field.only_when is not None:
                continue
            text = HOSTILE.replace("/", "∕") if field.type == "name" else HOSTILE
            found[name] = f"{value or ''}{text}"
            changed.add(where + name)
        elif field.type == "texts":
            found[name] = [f"{one}{HOSTILE}" for one in value or [""]]
            changed.add(where + name)
    return found, changed


@pytest.fixture
def hostile_run(build):
    run = build("run")
    run.everything()
    path, changed = run.writer.path, set()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("w") as file:
        for record in records:
            found, names = hostile({**COMMON, **KINDS[record["kind"]]}, record)
            changed |= {f"{record['kind']}.{name}" for name in names}
            file.write(json.dumps(found) + "\n")
    return path, changed


def test_markup_in_every_text_of_the_schema_runs_nothing(hostile_run, tab, tmp_path):
    path, changed = hostile_run
    assert {kind.partition(".")[0] for kind in changed} == set(KINDS), "a kind of record without a hostile text"
    page = tab().open(write_html([read_run(path)], tmp_path / "report.html"))

    page.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.js(
        "document.querySelectorAll('select').forEach(s => { for (const o of s.options) { s.value = o.value;"
        " s.dispatchEvent(new Event('change', {bubbles: true})) } })"
    )
    page.js("document.querySelectorAll('th').forEach(h => h.click())")

    assert page.js("window.ran ?? null") is None
    assert page.js(FOREIGN) == 0
    assert page.js(LINKS) == 0
    assert page.js("document.scripts.length") == 4, "the data, plotly packed and unpacked, and ours"
    assert "onerror='window.ran" in page.js("document.body.innerText"), "the text itself is shown"
    assert [call for call in page.complaints() if "ran" in str(call)] == []
    assert [address for address in page.requests() if not address.startswith(("data:", "file:", "blob:"))] == []


def test_the_same_text_put_into_a_page_unescaped_would_have_run(tab, tmp_path):
    (tmp_path / "careless.html").write_text(f"<!doctype html><script>window.ready = 1</script>{HOSTILE}")
    page = tab().open(tmp_path / "careless.html")
    assert page.js("new Promise(done => setTimeout(() => done(window.ran ?? 0), 300))") > 0
    assert page.js(FOREIGN) > 0


def test_markdown_holds_no_markup_of_a_stranger(hostile_run, tmp_path):
    text = write_markdown([read_run(hostile_run[0])], tmp_path / "report.md").read_text()
    outside = "".join(text.split("```")[::2])
    assert "<script>" not in outside
    assert "<img" not in outside
