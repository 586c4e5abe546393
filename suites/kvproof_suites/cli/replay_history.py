"""``kvproof replay`` on a history: recorded operations, through any allocator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvproof_suites.cli import replaying
from kvproof_suites.cli.terminal import note

if TYPE_CHECKING:
    from kvproof_suites.history_compare import Replayed


def is_history(path: Path) -> bool:
    from kvproof_suites import histories

    return histories.is_history(path)


def replay(path: Path, names: str, judged: bool = True) -> None:
    """Put the history through each allocator, and exit with 1 when one breaks a law."""
    from kvproof_suites.histories import HistoryError, open_history
    from kvproof_suites.history_replay import replay_history

    try:
        source = open_history(path)
        if (line := source.torn_line()) is not None:
            click.echo(f"{path}:{line}: torn, the process that recorded it ended in this operation", err=True)
    except (HistoryError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from None
    any_broken = False
    for implementation in replaying.load_allocators(names):
        assert implementation.allocator is not None
        note(f"putting {path.name} through {implementation.name} ...")
        try:
            outcome = replay_history(source, implementation.allocator, judged)
        except (HistoryError, UnicodeDecodeError) as error:
            where = "" if str(error).startswith(str(path)) else f"{implementation.name}: "
            raise click.ClickException(f"{where}{error}") from None
        any_broken |= outcome.broken is not None
        show(implementation.name, outcome, judged)
    if any_broken:
        raise click.exceptions.Exit(1)


def show(name: str, outcome: Replayed, judged: bool) -> None:
    skipped = f", {outcome.num_skipped} skipped for want of room" if outcome.num_skipped else ""
    held = "every law held" if judged else "not judged"
    click.echo(f"{name}: {outcome.broken or f'{outcome.num_operations} operations{skipped}, {held}'}")
    if outcome.difference:
        click.echo(f"  first difference: {outcome.difference}")
        click.echo("  before it\n" + "\n".join(f"  {line}" for line in outcome.before))
    if compared := "; ".join(in_words(outcome)):
        click.echo(f"  compared: {compared}")


def in_words(outcome: Replayed) -> list[str]:
    from kvproof_suites.history_compare import KINDS

    told = []
    for kind in KINDS:
        agreeing, differing = outcome.num_agreeing[kind], outcome.num_differing[kind]
        if agreeing or differing:
            told.append(f"{kind} {agreeing} agree, {differing} differ" if differing else f"{kind} {agreeing} agree")
    return told
