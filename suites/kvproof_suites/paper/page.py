"""The comparison as lines of a table, and as the page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from textwrap import fill

from kvproof_suites.paper.claim import Chart, Row, Value
from kvproof_suites.paper.sections import Section

COLUMNS = ("claim", "published", "ours", "tolerance", "verdict", "source")

HEAD = """\
# Published figures, computed anew

`kvproof paper` computes what papers published about paged KV caches and can be computed without a GPU, and judges each
figure by a tolerance that stands beside it; exit code 1 tells that one was missed. Figures that may not be asserted are
shown with the reason. This page is the command's own output:

```
kvproof paper --traces DIR --write docs/paper.md --plots docs
```

DIR holds Azure's and Mooncake's public traces, which are not part of this repository; without it their rows say so.
Sources: Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023;
Qin et al., *Mooncake*, FAST 2025. Azure's traces: CC-BY 4.0, Patel et al., *Splitwise*, ISCA 2024. Mooncake's:
Apache-2.0."""

NOT_HERE = """\
## What is not here

The kernel's overhead against FasterTransformer (20 to 26 %), throughput and latency need a GPU, and the first a kernel
of 2022: history, not a target."""


def told(value: Value | None, unit: str) -> str:
    """A computed figure as it is shown; two readings as a range."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        low, high = (number(each, unit) for each in value)
        return low_to_high(low, high, unit)
    return f"{number(value, unit)} {unit}".strip()


def low_to_high(low: str, high: str, unit: str) -> str:
    return (low if low == high else f"{low} to {high}") + (f" {unit}" if unit else "")


def number(value: float, unit: str) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if unit.startswith("%") or unit in ("points", "tokens") else f"{value:,.2f}"


def published(row: Row) -> str:
    """As the source prints it."""
    claim = row.claim
    if claim.published is None:
        return "–"
    figure = f"{claim.published:,}" if isinstance(claim.published, int) else f"{round(claim.published, 2):,g}"
    return f"{figure} {claim.unit}".strip()


def letters(rows: Sequence[Row]) -> dict[str, str]:
    """Each reason once, with the letter that stands for it in the table."""
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    return dict(zip(reasons, ascii_lowercase, strict=False))


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """In the order of ``COLUMNS``; a letter refers to the reason for a tolerance, or for having none."""
    known = letters(rows)
    return [_cells(row, f" ({known[row.reason]})" if row.reason else "") for row in rows]


def _cells(row: Row, letter: str) -> tuple[str, ...]:
    claim = row.claim
    is_judged = claim.tolerance is not None and not row.absent
    tolerance = "–" if claim.tolerance is None else str(claim.tolerance)
    tolerance, verdict = (tolerance + letter, row.verdict) if is_judged else (tolerance, row.verdict + letter)
    return (claim.says, published(row), told(row.ours, claim.unit), tolerance, verdict, claim.source)


def notes(rows: Sequence[Row]) -> list[str]:
    return [f"({letter}) {reason}." for reason, letter in letters(rows).items()]


def section_markdown(section: Section, rows: Sequence[Row], charts: Sequence[Chart]) -> str:
    """Title, what is compared, the table, and the plots with their figures."""
    parts = [f"## {section.title}", fill(section.lead, 120), table(COLUMNS, cells(rows))]
    parts += [fill(" ".join(notes(rows)), 120)] if notes(rows) else []
    for chart in charts:
        parts.append(f"![{chart.title}](paper-{chart.name}.png)")
        if not chart.is_bars:
            parts.append(table(chart_columns(chart), chart_rows(chart)))
    return "\n\n".join(parts)


def page(sections: Sequence[str]) -> str:
    return "\n\n".join([HEAD, *sections, NOT_HERE]) + "\n"


def chart_columns(chart: Chart) -> list[str]:
    head = f"{chart.y_title}, by {chart.x_title}" if chart.y_title else f"by {chart.x_title}"
    return [head, *(f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in chart.x)]


def chart_rows(chart: Chart) -> list[tuple[str, ...]]:
    return [(name, *(f"{y:.1f}" for y in line)) for name, line in chart.lines.items()]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
