"""``kvproof list``: what can be judged on this machine, and why the rest can't."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from kvproof_suites.cli.terminal import show_json, show_table, working


@click.command(short_help="What can be judged here, and why the rest can't.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of a table.")
def command(as_json: bool) -> None:
    """List the implementations: what each provides, its version, and whether it runs here.

    Each one is really loaded, so that "available" is a fact and not a guess.

    \b
    kvproof list
    kvproof list --json | jq -r '.[] | select(.available) | .name'
    """
    from kvproof_impls import registry

    names = registry.names()
    with working(f"loading {len(names)} implementations"), ThreadPoolExecutor(max_workers=2) as pool:
        rows = list(pool.map(_describe, names))
    if as_json:
        show_json(rows)
        return
    columns = ("name", "provides", "version", "state", "summary")
    show_table(columns, ([row[column] for column in columns] for row in rows))


def _describe(name: str) -> dict[str, Any]:
    from kvproof_impls.built_in import BUILT_IN
    from kvproof_suites.isolation.probe import availability

    entry = BUILT_IN.get(name)
    row: dict[str, Any] = {
        "name": name,
        "provides": entry.provides if entry else None,
        "version": None,
        "available": False,
        "state": "",
        "summary": entry.summary if entry else "announced by an installed package",
    }
    found = availability(name)
    if found.reason is not None:
        return row | {"state": f"unavailable: {found.reason}"}
    state = f"available in {found.where}" if found.where else "available"
    return row | {"provides": found.provides, "version": found.version, "available": True, "state": state}
