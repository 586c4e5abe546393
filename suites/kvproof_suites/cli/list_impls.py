"""``kvproof list``: what can be judged on this machine, and why the rest can't."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from kvproof_suites.cli.terminal import show_json, show_table, working


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

    entry = BUILT_IN.get(name)
    row: dict[str, Any] = {
        "name": name,
        "provides": entry.provides if entry else None,
        "version": None,
        "available": False,
        "state": "",
        "summary": entry.summary if entry else "announced by an installed package",
    }
    return row | _state(name)


def _state(name: str) -> dict[str, Any]:
    """Other people's libraries are loaded where they would be judged, in a process of their own."""
    import pytest

    from kvproof_impls import registry
    from kvproof_suites.isolation.choice import is_third_party, python_of
    from kvproof_suites.isolation.probe import probe

    try:
        if not is_third_party(name):
            loaded = registry.load(name)
            return _available(loaded.provides, loaded.version, "")
        python = python_of(name)
        found = probe(name, python)
        where = "" if python == Path(sys.executable) else f" in {python.parents[2].name}/{python.parents[1].name}"
        return _available(found["provides"], found["version"], where)
    except (registry.ImplementationError, pytest.UsageError) as error:
        reason = str(error).removeprefix(f"{name} is ").removeprefix("unavailable: ")
        return {"state": "unavailable: " + reason.replace("\n", ": ")}


def _available(provides: str | None, version: str | None, where: str) -> dict[str, Any]:
    return {"provides": provides, "version": version, "available": True, "state": f"available{where}"}
