"""Processes that take turns: each thing that is compared runs in one, with the Python that has its library.

A worker says one JSON line about itself, and one for each request that it is given, over pipes (``turn_taker``); other
lines, which libraries print, are passed over. It times within itself, and until it is asked again it only waits.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click
import pytest

from kvproof_impls.built_in import BUILT_IN
from kvproof_impls.registry import unavailable
from kvproof_suites.bench.turn_taker import Told, bare
from kvproof_suites.exit_codes import USAGE_ERROR
from kvproof_suites.isolation import death, processes
from kvproof_suites.isolation.choice import python_of

START_SECONDS = 900.0
"""For imports and what is measured once: a large pool made a few times takes one library minutes."""
MOST_SECONDS_A_TURN = 300.0
END_SECONDS = 20.0
LAST_WORDS = 20_000
"""Bytes of its standard error that are read when a worker has ended."""

Entry = tuple[str, str | None]
"""A name, and the Python that runs it: None for the one whose environment has its library."""


class Withdrawn(click.ClickException):
    """No time from a worker: it could not start, says why not, has ended, or says nothing for too long."""

    exit_code = USAGE_ERROR


@dataclass
class Player:
    """A worker process, as who compares sees it."""

    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    token: str
    """By which whatever it starts is found."""
    about: Told = field(default_factory=dict)
    """What it said of itself."""
    heard: bytes = b""
    """What was read beyond the last line."""
    gone: str | None = None


def everyone(half: str, first: str) -> list[Entry]:
    """All built-in names with an "allocator" or a "kernel", the one first that the others are compared with."""
    names = [name for name, entry in BUILT_IN.items() if getattr(entry, half)]
    return [(name, None) for name in sorted(names, key=lambda name: name != first)]


@contextmanager
def gathered(
    entries: Iterable[Entry], begin: Callable[[str, str | None], Player], required: bool
) -> Iterator[tuple[list[Player], list[tuple[str, str]]]]:
    """Start workers one after the other, and end them all in the end.

    Yields:
        those that are ready, and (name, reason) of those that can't take part.

    Raises:
        Withdrawn: one of those, where all are ``required``, as they are where somebody has named them.
    """
    players: list[Player] = []
    absent: list[tuple[str, str]] = []
    try:
        for name, python in entries:
            try:
                players.append(begin(name, python))
            except Withdrawn as reason:
                if required:
                    raise Withdrawn(f"{name}: {reason}") from None
                absent.append((name, str(reason)))
        yield players, absent
    finally:
        for player in players:
            end(player)


def start(
    name: str,
    module: str,
    arguments: Sequence[str],
    python: str | None,
    settings: Mapping[str, str],
) -> Player:
    """Run ``python -m module arguments`` and hear what it says of itself.

    Args:
        settings: of its environment.

    Raises:
        Withdrawn: it is unavailable, can't be started, or says why it takes no part.
    """
    python, token = python or str(interpreter_for(name)), secrets.token_hex(8)
    errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
    try:
        process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env=os.environ | dict(settings) | {processes.TOKEN: token},
        )
    except OSError as error:
        raise Withdrawn(f"{python} can't be started: {error}") from error
    player = Player(name, process, errors, token)
    try:
        player.about = hear(player, START_SECONDS)
    except BaseException:
        end(player)
        raise
    return player


def interpreter_for(name: str) -> Path:
    """
    Raises:
        Withdrawn: it is known without a process that the implementation can't be loaded.
    """
    try:
        python = python_of(name)
    except pytest.UsageError as error:
        raise Withdrawn(bare(name, error)) from error
    if python == Path(sys.executable) and name in BUILT_IN and (reason := unavailable(name)) is not None:
        raise Withdrawn(reason)
    return python


def ask(player: Player, request: Mapping[str, Any]) -> Told:
    """Give it its turn, and wait for what it answers.

    Raises:
        Withdrawn: it gives a reason instead, or has ended, now or in an earlier turn.
    """
    if player.gone is not None:
        raise Withdrawn(player.gone)
    assert player.process.stdin is not None
    try:
        player.process.stdin.write(json.dumps(request).encode() + b"\n")
    except OSError:
        raise _ended(player, _how_it_ended(player)) from None
    return hear(player, MOST_SECONDS_A_TURN)


def hear(player: Player, seconds: float) -> Told:
    """The next JSON line, within ``seconds``.

    Raises:
        Withdrawn: it gives a reason instead, ended, or says nothing in time.
    """
    output, deadline = player.process.stdout, time.monotonic() + seconds
    assert output is not None
    while True:
        while b"\n" in player.heard:
            line, _, player.heard = player.heard.partition(b"\n")
            if line.startswith(b"{"):
                told: Told = json.loads(line)
                if "reason" in told:
                    raise Withdrawn(told["reason"])
                return told
        if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise _ended(player, f"said nothing for {seconds:.0f} s")
        more = os.read(output.fileno(), 2**16)
        if not more:
            raise _ended(player, _how_it_ended(player))
        player.heard += more


def _ended(player: Player, reason: str) -> Withdrawn:
    player.gone = reason
    _kill(player)
    return Withdrawn(reason)


def _how_it_ended(player: Player) -> str:
    try:
        code = player.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its output and lived on"
    told = f"ended with code {code}" if code >= 0 else str(death.by_exit(code, ""))
    player.errors.seek(max(0, player.errors.seek(0, os.SEEK_END) - LAST_WORDS))
    lines = player.errors.read().decode(errors="replace").strip().splitlines()
    return f"{told}: {lines[-1]}" if lines else told


def end(player: Player) -> None:
    """It, and what it has started."""
    _kill(player)
    for pipe in (player.process.stdin, player.process.stdout, player.errors):
        if pipe is not None:
            pipe.close()


def _kill(player: Player) -> None:
    player.process.kill()
    player.process.wait()
    processes.end(player.token)


def listed(absent: Sequence[tuple[str, str]]) -> str:
    """Markdown: who was not timed, and why."""
    return "\n".join(["Not timed:", "", *(f"- {name}: {reason}" for name, reason in absent)])
