"""The shipped JSON Schema says what the table says."""

from kvproof_reports.json_schema import PATH, json_schema, json_schema_text
from kvproof_reports.schema import COMMON, KINDS


def test_the_shipped_text_is_the_generated_one():
    assert PATH.read_text(encoding="utf-8") == json_schema_text()


def test_every_kind_and_field_is_described():
    described = {kind["title"]: kind["properties"] for kind in json_schema()["oneOf"]}

    assert list(described) == list(KINDS)
    for kind, table in KINDS.items():
        assert list(described[kind]) == [*COMMON, *table]


def test_conditions_become_rules():
    benchmark = next(kind for kind in json_schema()["oneOf"] if kind["title"] == "benchmark")

    assert {
        "if": {"required": ["timed"], "properties": {"timed": {"enum": [True]}}},
        "else": {"properties": {"median_ms": {"type": "null"}}},
    } in benchmark["allOf"]
