"""``kvproof laws``: what is checked, and why."""

from __future__ import annotations

import dataclasses
import difflib
import re

import click

from kvproof_suites.cli.terminal import show_json, show_table
from kvproof_suites.laws import LAWS, Law

FAMILIES = {
    "A": "Allocator",
    "B": "Prefix cache",
    "C": "Copy-on-write and moves",
    "D": "Scheduling",
    "E": "Step tensors",
    "F": "Cache writes",
    "G": "Attention kernels",
    "Q": "Quantised KV",
}

PUBLIC_REPORT = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@click.command()
@click.argument("names", nargs=-1, metavar="[LAW]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.option("--markdown", is_flag=True, help="The table of laws as it stands in SPEC.md.")
def command(names: tuple[str, ...], as_json: bool, markdown: bool) -> None:
    """List the laws in the order they run, or explain the LAWs named by id or title.

    \b
    kvproof laws
    kvproof laws G18
    kvproof laws needle census
    """
    laws = [find(name) for name in names] or list(LAWS.values())
    if as_json:
        show_json([dataclasses.asdict(law) for law in laws])
    elif markdown:
        click.echo(as_markdown(laws))
    elif names:
        click.echo("\n\n".join(map(explain, laws)))
    else:
        show_table(("law", "title", "sentence"), ((law.id, law.title, law.sentence) for law in laws))


def find(name: str) -> Law:
    for law in LAWS.values():
        if name.lower() in (law.id.lower(), law.title.lower()):
            return law
    known = [*LAWS, *(law.title for law in LAWS.values())]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(LAWS)}"
    raise click.UsageError(f"no law is called {name!r}; {hint}")


def explain(law: Law) -> str:
    lines = [
        f"{law.id} {law.title}",
        "",
        f"  {law.sentence}",
        "",
        f"  prevents  {law.why}",
        f"  origin    {law.origin}",
    ]
    return "\n".join([*lines, f"  needs     {law.needs}"] if law.needs else lines)


def as_markdown(laws: list[Law]) -> str:
    """One table for each family, in the order of the families; within one, in the order the laws run."""
    sections = []
    for letter, family in FAMILIES.items():
        members = [law for law in laws if law.id[0] == letter]
        if members:
            head = [
                f"### {letter}. {family}",
                "",
                "| law | says | prevents | origin | needs |",
                "|---|---|---|---|---|",
            ]
            sections.append("\n".join(head + [markdown_row(law) for law in members]))
    return "\n\n".join(sections)


def markdown_row(law: Law) -> str:
    origin = PUBLIC_REPORT.sub(r"[\1#\2](https://github.com/\1/issues/\2)", law.origin)
    cells = (f"**{law.id}** {law.title}", law.sentence, law.why, origin, law.needs)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
