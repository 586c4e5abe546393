"""JSON, read strictly: one object a line, no field twice, none unknown, none missing."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from kvproof_traces.lines import TraceError, line_text

Row = dict[str, Any]


class _Twice(ValueError):
    """A field that an object has twice."""


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return row


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
"""Refuses NaN, and a field that is given twice, of which JSON readers silently keep one."""


def parse_object(path: str | Path, number: int, raw: bytes) -> Row:
    """The object on one line.

    Raises:
        TraceError: not JSON, not an object, or a field twice.
    """
    text = line_text(path, number, raw)
    try:
        row = STRICT.decode(text)
    except _Twice as error:
        raise TraceError(path, number, str(error), "is given twice", "keep one") from None
    except (ValueError, RecursionError) as error:
        cure = "a line may be cut off or hold two objects: give one JSON object a line"
        raise TraceError(path, number, "line", f"is not JSON ({error})", cure) from None
    if type(row) is not dict:
        raise TraceError(path, number, "line", f"is a JSON {type(row).__name__}", "give one JSON object a line")
    return row


def check_fields(path: str | Path, number: int, row: Row, required: Collection[str], known: Collection[str]) -> None:
    """
    Raises:
        TraceError: a field beyond ``known``, or one of ``required`` missing.
    """
    for field in row:
        if field not in known:
            raise TraceError(path, number, field, "is an unknown field", f"known are {', '.join(known)}")
    for field in required:
        if field not in row:
            raise TraceError(path, number, field, "is missing", f"a row needs {', '.join(required)}")


def as_ms(path: str | Path, number: int, field: str, value: Any, per_ms: float, unit: str) -> float:
    """Milliseconds of a JSON number of which ``per_ms`` make one.

    Raises:
        TraceError: no number, or one that floating point can't hold.
    """
    if type(value) not in (int, float):
        raise TraceError(path, number, field, f"{value!r} is not a number", f"give {unit}", reason="bad time")
    if abs(value) > 2**53:
        what = f"{value} is not exact in floating point"
        raise TraceError(path, number, field, what, f"give {unit}", reason="bad time")
    # Rounded to picoseconds, below any clock: 61.114 s are 61114 ms and not 61113.99999999999.
    return float(value) if per_ms == 1 else round(value / per_ms, 9)


def as_tuple(value: Any) -> Any:
    """A JSON list as the tuple that a Request holds; anything else as it is, for the Request to refuse."""
    return tuple(value) if type(value) is list else value
