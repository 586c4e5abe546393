"""``kvproof replay`` on a history: the operations of a failed allocator law, through any allocator."""

from __future__ import annotations

from pathlib import Path

import click

from kvproof_suites.cli import replaying


def is_history(path: Path) -> bool:
    from kvproof_suites import histories

    return histories.is_history(path)


def replay(path: Path, names: str) -> None:
    """Put the history through each allocator, and exit with 1 when one breaks a law."""
    from kvproof_suites.histories import HistoryError, read_history, replay_history

    try:
        history = read_history(path)
    except (HistoryError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from None
    any_broken = False
    for implementation in replaying.load_allocators(names):
        assert implementation.allocator is not None
        try:
            outcome = replay_history(history, implementation.allocator)
        except HistoryError as error:
            raise click.ClickException(f"{implementation.name}: {error}") from None
        any_broken |= outcome.broken is not None
        skipped = f", {outcome.num_skipped} skipped for want of room" if outcome.num_skipped else ""
        verdict = outcome.broken or f"{outcome.num_operations} operations{skipped}, every law held"
        click.echo(f"{implementation.name}: {verdict}")
        if outcome.difference:
            click.echo(f"  first difference: {outcome.difference}")
    if any_broken:
        raise click.exceptions.Exit(1)
