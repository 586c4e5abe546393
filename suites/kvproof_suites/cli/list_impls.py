"""``kvproof list``: what can be judged on this machine, and why the rest can't."""

from __future__ import annotations

from typing import Any

import click

from kvproof_suites.cli.terminal import show_json, show_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of a table.")
def command(as_json: bool) -> None:
    """List the implementations: what each provides, its version, and whether it runs here.

    Each one is really loaded, so that "available" is a fact and not a guess.

    \b
    kvproof list
    kvproof list --json | jq -r '.[] | select(.available) | .name'
    """
    from kvproof_impls import registry

    rows = [_describe(name) for name in registry.names()]
    if as_json:
        show_json(rows)
        return
    columns = ("name", "provides", "version", "state", "summary")
    show_table(columns, ([row[column] for column in columns] for row in rows))


def _describe(name: str) -> dict[str, Any]:
    from kvproof_impls import registry
    from kvproof_impls.built_in import BUILT_IN

    entry = BUILT_IN.get(name)
    row: dict[str, Any] = {
        "name": name,
        "provides": entry.provides if entry else None,
        "version": None,
        "available": False,
        "state": "",
        "summary": entry.summary if entry else "announced by an installed package",
    }
    try:
        loaded = registry.load(name)
    except registry.ImplementationError as error:
        reason = str(error).removeprefix(f"{name} is ").removeprefix("unavailable: ")
        return row | {"state": "unavailable: " + reason.replace("\n", ": ")}
    return row | {"provides": loaded.provides, "version": loaded.version, "available": True, "state": "available"}
