"""Histories of operations read back, line by line, so that their length does not matter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kvproof_impls.history import FIELDS, MARK, OPTIONAL, READABLE, hashable
from kvproof_suites.allocator.history import History, Operation

FIRST_LINE = 2
"""Of the operations; line 1 says what the allocator is made with."""
ERRORS = ("KeyError", "ValueError", "MemoryError")
MOST_LINE_BYTES = 1 << 24
"""A prompt of a million tokens takes half of it."""
MOST = {"num_blocks": 1 << 24, "block_size": 1 << 24}
"""An allocator is made of these before anything else is read."""
RESULTS = "null, a number, [source, destination] pairs, or the slots and copies of a step"


class HistoryError(ValueError):
    """A history that can't be used: file, line and field."""


@dataclass(frozen=True)
class Source:
    """A history as a file; each call of ``operations`` reads it from its start."""

    path: Path
    num_blocks: int
    block_size: int
    late: bool = False
    law: str | None = None

    def operations(self) -> Iterator[tuple[int, Operation]]:
        """(line, operation); raises HistoryError at the first fault.

        Of a process that died the last line may be torn. It stands for an operation without a result where its
        arguments are complete, and is passed over where not.
        """
        for line, text in lines_of(self.path):
            if line >= FIRST_LINE and text.strip() and (operation := read_line(self.path, line, text)) is not None:
                yield line, operation

    def torn_line(self) -> int | None:
        """The number of a last line that ends before its JSON does."""
        last, number_of_lines = "", 0
        for number_of_lines, last in lines_of(self.path):  # noqa: B007, both of the last line
            pass
        return number_of_lines if number_of_lines >= FIRST_LINE and is_torn(last) else None


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, its text with its end); raises HistoryError for one that is too long or not UTF-8."""
    with path.open("rb") as file:
        for line, raw in enumerate(iter(partial(file.readline, MOST_LINE_BYTES + 1), b""), 1):
            if len(raw) > MOST_LINE_BYTES:
                raise HistoryError(
                    f"{path}:{line}: is longer than {MOST_LINE_BYTES:,} bytes; give one operation a line"
                )
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise HistoryError(f"{path}:{line}: byte {error.start + 1} of the line is not UTF-8") from None


def is_history(path: Path) -> bool:
    """By its first line, so that a trace and a history need no option to tell them apart."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return f'"{MARK}"' in file.readline(4_096)
    except OSError:
        return False


def open_history(path: Path) -> Source:
    """Raises HistoryError for a fault of the first line, and OSError."""
    _, first = next(lines_of(path), (1, ""))
    try:
        head = parse(path, 1, first)
    except RecursionError:
        fail(path, 1, MARK, "is not to be found among so many lists in lists")
    if head.get(MARK) not in READABLE:
        fail(path, 1, MARK, f"is {head.get(MARK)!r}; this kvproof reads versions {', '.join(map(str, READABLE))}")
    sizes = {name: number(path, 1, head, name, least=1) for name in ("num_blocks", "block_size")}
    for name, most in MOST.items():
        if sizes[name] > most:
            fail(path, 1, name, f"is {sizes[name]:,}; no pool has more than {most:,}")
    if not isinstance(head.get("late", False), bool):
        fail(path, 1, "late", f"is {head['late']!r}; it must be true or false")
    return Source(path, **sizes, late=head.get("late", False), law=head.get("law"))


def read_history(path: Path) -> History:
    """All of it at once. Raises HistoryError for the first fault, and OSError."""
    source = open_history(path)
    operations = [operation for _, operation in source.operations()]
    return History(source.num_blocks, source.block_size, source.late, source.law, operations)


def is_torn(text: str) -> bool:
    if text.endswith("\n"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def read_line(path: Path, line: int, text: str) -> Operation | None:
    try:
        if not is_torn(text):
            return read_operation(path, line, parse(path, line, text))
        try:
            record = json.loads(text + "}")  # the recorder writes the arguments first, then what came of it
        except ValueError:
            return None
        return replace(read_operation(path, line, record), ended=False) if isinstance(record, dict) else None
    except RecursionError:
        raise HistoryError(f"{path}:{line}: no history: lists in lists, too many to read") from None


def read_operation(path: Path, line: int, record: dict[str, Any]) -> Operation:
    name = record.get("op")
    if not isinstance(name, str) or name not in FIELDS:
        fail(path, line, "op", f"is {name!r}; known: {', '.join(FIELDS)}")
    if unknown := set(record) - {"op", "returned", "raised", "free", "must_raise", *FIELDS[name]}:
        fail(path, line, sorted(unknown)[0], f"is no field of {name}; known: {', '.join(FIELDS[name])}")
    if record.get("must_raise", ERRORS[0]) not in ERRORS:
        fail(path, line, "must_raise", f"is {record['must_raise']!r}; known: {', '.join(ERRORS)}")
    if not isinstance(record.get("raised"), str | None):
        fail(path, line, "raised", f"is {record['raised']!r}; it must be the name of an error")
    if not is_result(record.get("returned")):
        fail(path, line, "returned", f"is {record['returned']!r}; it must be {RESULTS}")
    free = number(path, line, record, "free", least=0) if "free" in record else None
    args = [argument(path, line, record, field) for field in FIELDS[name]]
    while args and args[-1] is None:  # optional ones at the end
        args.pop()
    return Operation(
        name, tuple(args), record.get("returned"), record.get("raised"), free, must_raise=record.get("must_raise")
    )


def argument(path: Path, line: int, record: dict[str, Any], field: str) -> Any:
    """None for an optional one that is absent, and () for an absent key before others."""
    value = record.get(field)
    if field in OPTIONAL and value is None:
        later = FIELDS[record["op"]][FIELDS[record["op"]].index(field) + 1 :]
        return () if field == "key" and any(record.get(name) is not None for name in later) else None
    if field in ("num_tokens", "max_tokens"):
        return number(path, line, record, field, least=None)
    if field in ("tokens", "seqs", "key", "items"):
        if not isinstance(value, list) or (field == "tokens" and not all(type(token) is int for token in value)):
            fail(path, line, field, f"is {value!r}; it must be a list{' of integers' if field == 'tokens' else ''}")
    elif field not in record:
        fail(path, line, field, f"is missing; {record['op']} needs it")
    if field == "tokens":
        return value
    if any_object(value):
        fail(path, line, field, f"is {value!r}; ids and keys are strings, numbers, or lists of them")
    return [hashable(seq) for seq in value or ()] if field == "seqs" else hashable(value)


def any_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(any_object, value)))


def is_result(value: Any) -> bool:
    if isinstance(value, dict):
        lists = all(isinstance(part, list) and is_result(part) for part in value.values())
        return lists and value.keys() == {"slots", "copies"}
    if isinstance(value, list):
        return all(type(part) is int or is_pair(part) for part in value)
    return value is None or isinstance(value, int | str)


def is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(block) is int for block in value)


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
    except ValueError as error:  # a number of too many digits
        raise HistoryError(f"{path}:{line}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise HistoryError(f"{path}:{line}: {found!r} is no JSON object")
    return found


def fail(path: Path, line: int, field: str, what: str) -> NoReturn:
    raise HistoryError(f"{path}:{line}: {field}: {what}")
