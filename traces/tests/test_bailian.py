"""Bailian's traps: seconds, 16-token blocks, ids of blocks and not of prefixes, parents that are no prefix."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, TraceError, load

ROW = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 35,
    "output_length": 12,
    "type": "text",
    "turn": 1,
    "hash_ids": [7, 8, 9],
}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_sample_is_in_seconds_and_blocks_of_16():
    trace = load(SAMPLES / "bailian.jsonl")
    assert trace.format == "bailian"
    assert [r.arrival_ms for r in trace.requests] == [0.0, 4125.0]
    assert [r.hash_ids for r in trace.requests] == [(0, 1, 2), (0, 1, 3, 4, 5)]
    assert {r.hash_block_size for r in trace.requests} == {16}


def test_seconds_become_the_milliseconds_that_a_reader_would_write(tmp_path):
    assert load(write(tmp_path / "trace", ROW)).requests[0].arrival_ms == 61114.0


def test_a_block_after_another_prefix_is_another_block(tmp_path):
    rows = [ROW, {**ROW, "chat_id": 2, "hash_ids": [8, 7, 9]}, {**ROW, "chat_id": 3, "hash_ids": [7, 8, 4]}]
    trace = load(write(tmp_path / "trace", *rows))
    assert [r.hash_ids for r in trace.requests] == [(0, 1, 2), (3, 4, 5), (0, 1, 6)]
    assert "renumbered" in trace.notes[0]


def test_rows_may_leave_out_all_but_times_and_lengths(tmp_path):
    row = {name: ROW[name] for name in ("chat_id", "timestamp", "input_length", "output_length")}
    trace = load(write(tmp_path / "trace", row))
    assert (trace.format, trace.requests[0].hash_ids) == ("bailian", ())


def test_a_child_need_not_begin_with_its_parent(tmp_path):
    child = {**ROW, "chat_id": 2, "parent_chat_id": 1, "turn": 2, "hash_ids": [4, 5, 6]}
    orphan = {**ROW, "chat_id": 3, "parent_chat_id": 99}
    assert load(write(tmp_path / "trace", ROW, child, orphan)).rows_read == 3


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"hash_ids": [7, 8]}, "hash_ids", "too few hash ids"),
        ({"hash_ids": []}, "hash_ids", "too few hash ids"),
        ({"hash_ids": [7, 8, -9]}, "hash_ids", "bad number"),
        ({"timestamp": 61.0}, "timestamp", "time goes back"),
        ({"timestamp": "62"}, "timestamp", "bad time"),
        ({"output_length": 0}, "output_length", "no output"),
        ({"chat_id": 1}, "chat_id", "id given twice"),
        ({"turn": "2"}, "turn", "bad number"),
        ({"mood": "good"}, "mood", "malformed"),
    ],
)
def test_a_bad_row_names_its_field_and_leaves_no_ids_behind(tmp_path, change, field, reason):
    bad, after = {**ROW, "chat_id": 2, **change}, {**ROW, "chat_id": 3, "hash_ids": [7, 8, 10]}
    path = write(tmp_path / "trace", ROW, bad, after)
    with pytest.raises(TraceError) as caught:
        load(path, format="bailian")
    assert (caught.value.line, caught.value.field, caught.value.reason) == (2, field, reason)
    assert load(path, format="bailian", skip_bad=True).requests[1].hash_ids == (0, 1, 3)
