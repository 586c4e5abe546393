"""Any text as Markdown that shows it, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvproof_reports.texts import visible

NUM_REASON_CHARACTERS = 1500


def escape(value: object) -> str:
    """Any text as one line of plain Markdown text, fit for a table cell: no markup, no HTML, no mention; and on a
    terminal no more than text."""
    line = visible(" ".join(str(value).split()))
    line = re.sub(r"([\\`*_\[\]#|~])", r"\\\1", line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str) -> str:
    """A code block that its own content can't close."""
    text = visible(text)
    if len(text) > NUM_REASON_CHARACTERS:
        text = f"{text[:NUM_REASON_CHARACTERS]}\n... ({len(text):,} characters in all, see report.html)"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], num_text_columns: int = 1) -> str:
    """Cells are escaped; all columns but the first ``num_text_columns`` are aligned to the right."""
    rule = ["---" if index < num_text_columns else "---:" for index in range(len(header))]
    lines = [[escape(cell) for cell in header], rule, *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
