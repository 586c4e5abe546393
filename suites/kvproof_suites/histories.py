"""Histories of operations read back, and put through any allocator under all laws at once."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kvproof_suites.allocator import probes
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.history import FIELDS, MARK, VERSION, History, Operation, hashable, plain
from kvproof_suites.allocator.programs import applies, perform
from kvproof_suites.laws import LAWS
from kvproof_suites.outcome import LawBroken

FIRST_LINE = 2
"""Of the operations; line 1 says what the allocator is made with."""
ERRORS = ("KeyError", "ValueError", "MemoryError")


class HistoryError(ValueError):
    """A history that can't be used: file, line and field."""


def is_history(path: Path) -> bool:
    """By its first line, so that a trace and a history need no option to tell them apart."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return f'"{MARK}"' in file.readline(4_096)
    except OSError:
        return False


def read_history(path: Path) -> History:
    """Raises HistoryError for the first fault, and OSError."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = parse(path, 1, lines[0] if lines else "")
    if head.get(MARK) != VERSION:
        fail(path, 1, MARK, f"is {head.get(MARK)!r}; this kvproof reads version {VERSION}")
    sizes = {name: number(path, 1, head, name, least=1) for name in ("num_blocks", "block_size")}
    if not isinstance(head.get("late", False), bool):
        fail(path, 1, "late", f"is {head['late']!r}; it must be true or false")
    operations = [
        read_operation(path, line, parse(path, line, text))
        for line, text in enumerate(lines[1:], FIRST_LINE)
        if text.strip()
    ]
    return History(**sizes, late=head.get("late", False), law=head.get("law"), operations=operations)


def read_operation(path: Path, line: int, record: dict[str, Any]) -> Operation:
    name = record.get("op")
    if name not in FIELDS:
        fail(path, line, "op", f"is {name!r}; known: {', '.join(FIELDS)}")
    if unknown := set(record) - {"op", "returned", "raised", "must_raise", *FIELDS[name]}:
        fail(path, line, sorted(unknown)[0], f"is no field of {name}; known: {', '.join(FIELDS[name])}")
    if record.get("must_raise", ERRORS[0]) not in ERRORS:
        fail(path, line, "must_raise", f"is {record['must_raise']!r}; known: {', '.join(ERRORS)}")
    args = tuple(argument(path, line, record, field) for field in FIELDS[name] if field in record or field != "key")
    return Operation(name, args, record.get("returned"), record.get("raised"), record.get("must_raise"))


def argument(path: Path, line: int, record: dict[str, Any], field: str) -> Any:
    if field == "num_tokens":
        return number(path, line, record, field, least=None)
    if field in ("tokens", "seqs", "key"):
        value = record.get(field)
        if not isinstance(value, list) or (field == "tokens" and not all(type(token) is int for token in value)):
            fail(path, line, field, f"is {value!r}; it must be a list{' of integers' if field == 'tokens' else ''}")
        return value if field == "tokens" else hashable(value) if field == "key" else list(map(hashable, value))
    if field not in record:
        fail(path, line, field, f"is missing; {record['op']} needs it")
    return hashable(record[field])


def number(path: Path, line: int, record: dict[str, Any], field: str, least: int | None) -> int:
    value = record.get(field)
    if type(value) is not int or (least is not None and value < least):
        fail(path, line, field, f"is {value!r}; it must be an integer" + ("" if least is None else f" from {least} on"))
    return int(value)


def parse(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise HistoryError(f"{path}:{line}: no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise HistoryError(f"{path}:{line}: {found!r} is no JSON object")
    return found


def fail(path: Path, line: int, field: str, what: str) -> NoReturn:
    raise HistoryError(f"{path}:{line}: {field}: {what}")


@dataclass
class Replayed:
    """What became of a history on one allocator."""

    num_operations: int = 0
    num_skipped: int = 0
    """On sequences that the allocator had no room for."""
    difference: str | None = None
    """Where an answer first differs from the one in the history; another allocator may well number blocks otherwise."""
    broken: str | None = None
    """The operation, the law that it breaks, and the state before it."""


def replay_history(history: History, make_allocator: Callable[[int, int], Any]) -> Replayed:
    """Drive a fresh allocator through ``history`` with the shadow pool, up to the first broken law.

    Raises:
        HistoryError: the allocator lacks a capability that the history uses.
    """
    driver = Driver(make_allocator(history.num_blocks, history.block_size), LAWS, history.late)
    needed = [op.name for op in history.operations if op.name != "commit" and not op.must_raise]
    if missing := [name for name in needed if not driver.can(name)]:
        raise HistoryError(f"the history uses {missing[0]}, which this allocator does not have")
    found = Replayed()
    for line, operation in enumerate(history.operations, FIRST_LINE):
        if not driver.can(operation.name):
            continue  # nothing to publish without commit, nothing to refuse without the rest
        before = "\n".join(state(driver))
        try:
            answer = do(driver, operation)
        except LawBroken as broken:
            found.broken = f"line {line}: {operation} breaks {told(broken)}\nbefore it\n{before}"
            return found
        if answer is None:
            found.num_skipped += 1
            continue
        found.num_operations += 1
        recorded = operation.raised or plain(operation.returned)
        if found.difference is None and not operation.must_raise and answer != (recorded,):
            found.difference = f"line {line}: {operation} gave {answer[0]}, the history has {recorded}"
    before = "\n".join(state(driver))
    try:
        probes.release_all(driver)
    except LawBroken as broken:
        found.broken = f"after the last line, freeing every sequence breaks {told(broken)}\nbefore it\n{before}"
    return found


def do(driver: Driver, operation: Operation) -> tuple[Any] | None:
    """What came of it; None when it does not apply, because the allocator refused what it rests on."""
    if operation.must_raise:
        probes.refused(driver, getattr(builtins, operation.must_raise), operation.name, *operation.args)
        return (operation.must_raise,)
    step = (operation.name, operation.args)
    if not applies(driver, step):
        return None
    try:
        perform(driver, step)
    except MemoryError:
        return ("MemoryError",)
    return (plain(driver.history.operations[-1].returned),)


def state(driver: Driver) -> Iterator[str]:
    yield f"  {driver.num_free()} of {driver.allocator.num_blocks} blocks are free"
    for seq, record in driver.live.items():
        yield f"  {seq!r}: {len(record.tags)} tokens {list(record.prefix)}, blocks {driver.tables[seq]}"
    for seq in driver.swapped:
        yield f"  {seq!r}: swapped out"


def told(broken: LawBroken) -> str:
    """The first part of the story; the operations up to here are the history itself."""
    return str(broken).partition("\n  after\n")[0]
