"""``kvproof laws``: what is checked, and why."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import click

import kvproof_suites
from kvproof_suites.cli.terminal import show_json, show_table
from kvproof_suites.laws import LAWS, NOT_LAWS, Law, version

FAMILIES = {
    "A": "Allocator",
    "B": "Prefix cache",
    "C": "Copy-on-write and moves",
    "D": "Scheduling",
    "E": "Step tensors",
    "F": "Cache writes",
    "G": "Attention kernels",
    "Q": "Quantised KV",
    "H": "The suite itself",
}

PUBLIC_REPORT = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@click.command(short_help="What is checked, in the order it runs, and why.")
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
        show_json([{**dataclasses.asdict(law), "tests": tested_in(law)} for law in laws])
    elif markdown:
        click.echo(as_markdown(laws))
    elif names:
        click.echo("\n\n".join(map(explain, laws)))
    else:
        show_table(("law", "title", "sentence"), ((law.id, law.title, law.sentence) for law in laws), title=version())


def find(name: str) -> Law:
    for law in LAWS.values():
        if name.lower() in (law.id.lower(), law.title.lower()):
            return law
    known = [*LAWS, *(law.title for law in LAWS.values())]
    near = difflib.get_close_matches(name, known, n=1)
    near = near or [title for title in known if name and name.lower() in title]
    hint = f"did you mean {near[0]!r}?" if near else "`kvproof laws` lists them"
    raise click.UsageError(f"no law is called {name!r}; {hint}")


def explain(law: Law) -> str:
    told = {
        "prevents": law.why,
        "origin": law.origin,
        "needs": law.needs,
        "not here": law.here,
        "tests": tested_in(law),
    }
    lines = [f"  {name:<9} {text}" for name, text in told.items() if text]
    return "\n".join([f"{law.id} {law.title}", "", f"  {law.sentence}", "", *lines])


def tested_in(law: Law) -> str:
    return ", ".join(modules_by_law()[law.id])


@cache
def modules_by_law() -> dict[str, list[str]]:
    """Law to the test modules of this package whose ``pytest.mark.law`` names it."""
    root, found = Path(kvproof_suites.__file__).parent, defaultdict(set)
    for path in root.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "law":
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        found[argument.value].add(path.relative_to(root).as_posix())
    return {law.id: sorted(found[law.id]) or [law.tests] for law in LAWS.values()}


def as_markdown(laws: list[Law]) -> str:
    """One table for each family, in the order of the families; within one, in the order the laws run."""
    sections = []
    for letter, family in FAMILIES.items():
        members = [law for law in laws if law.id[0] == letter]
        if members:
            head = [
                f"### {letter}. {family}",
                "",
                "| law | says | prevents | origin | needs | tests |",
                "|---|---|---|---|---|---|",
            ]
            sections.append("\n".join(head + [markdown_row(law) for law in members]))
    if laws == list(LAWS.values()):
        rows = "\n".join(f"- **{name}** {why}." for name, why in NOT_LAWS.items())
        sections.append(f"### Not laws: what the contract does not show\n\n{rows}")
    return "\n\n".join(sections)


def markdown_row(law: Law) -> str:
    origin = PUBLIC_REPORT.sub(r"[\1#\2](https://github.com/\1/issues/\2)", law.origin)
    needs = "; ".join(filter(None, [law.needs, f"not run without a GPU: {law.here}" if law.here else ""]))
    cells = (f"**{law.id}** {law.title}", law.sentence, law.why, origin, needs, tested_in(law))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
