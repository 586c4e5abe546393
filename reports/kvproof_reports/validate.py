"""A record against the table in ``schema``: every fault by field name, and the same rules as JSON Schema."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from kvproof_reports.schema import COMMON, KINDS, MOST_SAMPLES, SCHEMA_VERSION, Condition, Field

MOST_FAULTS = 1000
"""That are told: a line may hold millions of fields that nobody knows."""
LARGEST = 1e100
"""Of a figure: far beyond every one that means something, and the product of three is still a float."""


class RecordError(ValueError):
    """A record, or a results file, that does not follow the schema. Each line of the text names one field."""


def faults(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with a whole record, each as ``field: what``, up to MOST_FAULTS; empty when it is good."""
    version = record.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return [f"schema_version: {version} is newer than {SCHEMA_VERSION}, the newest known here; upgrade kvproof"]
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return [f"kind: {_short(kind)} is not one of {', '.join(KINDS)}"]
    return list(islice(_field_faults({**COMMON, **KINDS[kind]}, record, ""), MOST_FAULTS))


def _field_faults(table: Mapping[str, Field], record: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name in record:
        if name not in table:
            near = difflib.get_close_matches(str(name), table, n=1)
            yield f"{prefix}{str(name)[:60]}: unknown field" + (f"; did you mean {near[0]}?" if near else "")
    for name, field in table.items():
        if (what := _fault(field, record.get(name), record)) is not None:
            yield f"{prefix}{name}: {what}"
        elif field.fields is not None:
            yield from _nested_faults(field.fields, record.get(name), f"{prefix}{name}")


def _nested_faults(table: Mapping[str, Field], value: Any, prefix: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _field_faults(table, value, f"{prefix}.")
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _field_faults(table, item, f"{prefix}[{index}].")


def _fault(field: Field, value: Any, record: Mapping[str, Any]) -> str | None:
    if value is None:
        if field.required:
            return "missing"
        if field.needed_when is not None and holds(field.needed_when, record):
            return f"missing, and needed when {_say(field.needed_when, record)}"
        return None
    if field.only_when is not None and not holds(field.only_when, record):
        return f"must be null when {_say(field.only_when, record)}"
    expected, accepts = TYPES[field.type]
    if not accepts(value):
        return f"{_short(value)} is not {expected}"
    if field.choices and value not in field.choices:
        return f"{_short(value)} is not one of {', '.join(field.choices)}"
    return None


def holds(condition: Condition, record: Mapping[str, Any]) -> bool:
    name, values = condition
    return record.get(name) in values


def _say(condition: Condition, record: Mapping[str, Any]) -> str:
    return f"{condition[0]} is {json.dumps(record.get(condition[0]), default=str)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and _is_signed(value)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_number(value: Any) -> bool:
    return _is_signed(value) and value >= 0


def _is_signed(value: Any) -> bool:
    """JSON has integers of any length, and a figure that is told is made of floats, of several such figures even."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _are_samples(value: Any) -> bool:
    return _is_list(value, lambda one: _is_number(one) and one > 0) and 1 <= len(value) <= MOST_SAMPLES


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(accepts, value))


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", lambda value: isinstance(value, str)),
    "name": ("a bare file name", lambda value: isinstance(value, str) and not set(value) & {"/", "\\"}),
    "time": ("an ISO 8601 time with its offset", _is_time),
    "texts": ("a list of texts", lambda value: _is_list(value, lambda one: isinstance(one, str))),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "integer": ("an integer", _is_integer),
    "count": ("an integer >= 0", _is_count),
    "number": ("a finite number >= 0 (write null for what can't be measured)", _is_number),
    "signed": ("a finite number", _is_signed),
    "samples": (f"a list of 1 to {MOST_SAMPLES} finite numbers above 0", _are_samples),
    "counts": ("a list of integers >= 0", lambda value: _is_list(value, _is_count)),
    "ratio": ("a number >= 0", lambda value: value == math.inf or _is_number(value)),
    "share": ("a number between 0 and 1", lambda value: _is_number(value) and value <= 1),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "objects": ("a list of objects", lambda value: _is_list(value, lambda one: isinstance(one, dict))),
}


def to_json(record: Mapping[str, Any]) -> dict[str, Any]:
    """A valid record in what JSON can hold."""
    return {name: "inf" if value == math.inf else value for name, value in record.items()}


def from_json(record: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of ``to_json``, of a record that may be faulty."""
    table = KINDS.get(str(record.get("kind")), {})
    ratios = {name for name, field in table.items() if field.type == "ratio"}
    return {name: math.inf if name in ratios and value == "inf" else value for name, value in record.items()}


def complete(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with every field of its kind, None where nothing was given, in the order of the table."""
    return _filled({**COMMON, **KINDS[record["kind"]]}, record)


def _filled(table: Mapping[str, Field], record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _filled_value(field, record.get(name)) for name, field in table.items()}


def _filled_value(field: Field, value: Any) -> Any:
    if field.fields is None or value is None:
        return value
    if isinstance(value, Mapping):
        return _filled(field.fields, value)
    return [_filled(field.fields, item) for item in value]
