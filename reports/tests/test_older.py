"""A results file of version 1 is read, and stands beside one of today."""

import json

from kvproof_reports.compare import compare_runs
from kvproof_reports.records import read_run

NEW = ("point", "value_dim", "kv_dtype", "cache", "mode", "samples_ms", "samples_per_process", "low_ms", "high_ms")


def as_version_1(folder):
    path = folder / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    old = [{**{name: v for name, v in one.items() if name not in NEW}, "schema_version": 1} for one in records]
    path.write_text("".join(json.dumps(one) + "\n" for one in old))


def test_decode_of_version_1_was_eager_and_cold_and_has_a_point(build):
    run = build("old")
    run.decode(batch=4, context_len=1024)
    run.decode(batch=1, context_len=1000)
    as_version_1(run.writer.folder)
    first, second = read_run(run.writer.folder).records
    assert [first[name] for name in ("schema_version", "cache", "mode", "point")] == [1, "cold", "eager", "4q1s1k"]
    assert second["point"] == "q1s1000"
    assert first["samples_ms"] is None


def test_a_run_of_version_1_stands_beside_one_of_today(build):
    old, new = build("old"), build("new")
    old.decode(median_ms=2.0)
    as_version_1(old.writer.folder)
    new.decode(median_ms=1.0, cache="cold", mode="eager", point="4q1s1k")
    (row,) = compare_runs([read_run(old.writer.folder), read_run(new.writer.folder)]).rows
    assert row.ratio == {"old": 1.0, "new": 0.5}
