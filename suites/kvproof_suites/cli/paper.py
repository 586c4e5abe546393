"""``kvproof paper``: published figures, computed anew and judged."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvproof_suites.cli.terminal import note, show_json, show_table
from kvproof_suites.exit_codes import CONFORMS, LAW_BROKEN, NOTHING_VERIFIED

if TYPE_CHECKING:
    from kvproof_suites.paper.claim import Chart, Row
    from kvproof_suites.paper.sections import Section


class Done(NamedTuple):
    section: Section
    rows: Sequence[Row]
    charts: Sequence[Chart]


@click.command(short_help="Published figures, computed anew and judged.")
@click.argument("names", nargs=-1, metavar="[SECTION]...")
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with Azure's and Mooncake's public traces; without it, rows that need one are not run.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: figures and charts.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Write the page docs/paper.md is to FILE."
)
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Draw each chart into this folder.")
def command(names: tuple[str, ...], traces: Path | None, as_json: bool, write: Path | None, plots: Path | None) -> None:
    """Compute what papers published about paged KV caches, and judge each figure by its tolerance.

    SECTIONs choose a part: worked-example, kv-bytes, composition, chat, sharing, watermarks, block-sizes, prefix-hits.
    Nothing is downloaded. Exit code 1 when a figure is missed, 5 when none could be judged.

    \b
    kvproof paper
    kvproof paper composition sharing
    kvproof paper --traces ~/traces --plots plots
    """
    done = list(compute(choose(names), traces))
    if as_json:
        show_json({"figures": list(figures(done)), "charts": list(charts(done))})
    else:
        show(done)
    if write is not None:
        write_page(done, write)
    if plots is not None:
        draw(done, plots)
    raise click.exceptions.Exit(exit_code([row for one in done for row in one.rows]))


def choose(names: Sequence[str]) -> list[Section]:
    """Those that are named, or all, in their order."""
    from kvproof_suites.paper.sections import SECTIONS

    known = [section.name for section in SECTIONS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise click.UsageError(f"no section is called {name!r}; {hint}")
    return [section for section in SECTIONS if not names or section.name in names]


def compute(sections: Sequence[Section], traces: Path | None) -> Iterator[Done]:
    from kvproof_suites.paper.claim import judge

    for section in sections:
        note(f"computing {section.name} ...")
        try:
            computed = section.compute(traces)
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from None
        yield Done(section, judge(section.claims, computed), computed.charts)


def show(done: Sequence[Done]) -> None:
    from kvproof_suites.paper.page import COLUMNS, cells, chart_columns, chart_rows, notes

    for section, rows, drawn in done:
        show_table(COLUMNS, cells(rows), title=section.title)
        for line in notes(rows):
            click.echo(line, err=True)
        for chart in drawn:
            if not chart.is_bars:
                show_table(chart_columns(chart), chart_rows(chart), title=chart.title)
    counts = Counter(row.verdict for one in done for row in one.rows)
    click.echo(", ".join(f"{number} {verdict}" for verdict, number in counts.items()), err=True)


def figures(done: Sequence[Done]) -> Iterator[dict[str, Any]]:
    for section, rows, _ in done:
        for row in rows:
            claim = row.claim
            yield {
                "section": section.name,
                "key": claim.key,
                "claim": claim.says,
                "published": claim.published,
                "ours": row.ours,
                "unit": claim.unit,
                "tolerance": str(claim.tolerance) if claim.tolerance else None,
                "verdict": row.verdict,
                "why": row.reason,
                "source": claim.source,
            }


def charts(done: Sequence[Done]) -> Iterator[dict[str, Any]]:
    for section, _, drawn in done:
        yield from ({"section": section.name, **dataclasses.asdict(chart)} for chart in drawn)


def write_page(done: Sequence[Done], path: Path) -> None:
    from kvproof_suites.paper.page import page, section_markdown

    try:
        path.write_text(page([section_markdown(*one) for one in done]), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


def draw(done: Sequence[Done], folder: Path) -> None:
    from kvproof_reports.extras import MissingExtra
    from kvproof_suites.paper.plots import write_plots

    try:
        paths = write_plots([chart for one in done for chart in one.charts], folder)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from None
    click.echo(f"drew {', '.join(path.name for path in paths) or 'nothing'} in {folder}", err=True)


def exit_code(rows: Sequence[Row]) -> int:
    verdicts = {row.verdict for row in rows}
    if "missed" in verdicts:
        return LAW_BROKEN
    return CONFORMS if "holds" in verdicts else NOTHING_VERIFIED
