"""The record table as JSON Schema, for readers that are not Python; its text is ``results.schema.json``.

Made again by ``python -m kvproof_reports.json_schema``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvproof_reports.schema import COMMON, KINDS, MOST_SAMPLES, SCHEMA_VERSION, Condition, Field

PATH = Path(__file__).with_name("results.schema.json")

_TYPES: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "name": {"type": "string", "pattern": r"^[^/\\]*$"},
    "time": {"type": "string", "format": "date-time"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "flag": {"type": "boolean"},
    "integer": {"type": "integer"},
    "count": {"type": "integer", "minimum": 0},
    "number": {"type": "number", "minimum": 0},
    "signed": {"type": "number"},
    "samples": {
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": 0},
        "minItems": 1,
        "maxItems": MOST_SAMPLES,
    },
    "counts": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "ratio": {"type": ["number", "string"], "minimum": 0, "pattern": "^inf$"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "object": {"type": "object"},
    "objects": {"type": "array"},
}


def json_schema() -> dict[str, Any]:
    """The schema of one line of a results file (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvproof results, version {SCHEMA_VERSION}: one record a line",
        "oneOf": [_kind(kind, table) for kind, table in KINDS.items()],
    }


def json_schema_text() -> str:
    return json.dumps(json_schema(), indent=1) + "\n"


def _kind(kind: str, table: Mapping[str, Field]) -> dict[str, Any]:
    schema = _object({**COMMON, **table})
    schema["properties"]["kind"] = {"const": kind}
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    rules = [rule for name, field in table.items() for rule in _rules(name, field)]
    return {"title": kind, **schema, **({"allOf": rules} if rules else {})}


def _object(table: Mapping[str, Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _property(field) for name, field in table.items()},
        "required": [name for name, field in table.items() if field.required],
        "additionalProperties": False,
    }


def _property(field: Field) -> dict[str, Any]:
    schema = {"description": field.doc, **_TYPES[field.type]}
    if field.fields is not None and field.type == "object":
        schema |= _object(field.fields)
    elif field.fields is not None:
        schema["items"] = _object(field.fields)
    if field.choices:
        schema["enum"] = [*field.choices, *([] if field.required else [None])]
    if not field.required:
        types = schema["type"]
        schema["type"] = [*(types if isinstance(types, list) else [types]), "null"]
    return schema


def _rules(name: str, field: Field) -> list[dict[str, Any]]:
    rules = []
    if field.needed_when is not None:
        present = {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
        rules.append({"if": _condition(field.needed_when), "then": present})
    if field.only_when is not None:
        rules.append({"if": _condition(field.only_when), "else": {"properties": {name: {"type": "null"}}}})
    return rules


def _condition(condition: Condition) -> dict[str, Any]:
    name, values = condition
    return {"required": [name], "properties": {name: {"enum": list(values)}}}


if __name__ == "__main__":
    PATH.write_text(json_schema_text(), encoding="utf-8")
