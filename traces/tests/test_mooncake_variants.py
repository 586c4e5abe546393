"""Files that borrow Mooncake's field names: other blocks, other units, fields left out, turns without a time."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, TraceError, detect, load, stream
from kvproof_traces.reading import MissingOption

CHUNKED = [
    {"timestamp": 0, "input_length": 100, "output_length": 9, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 128, "output_length": 9, "hash_ids": [0, 2]},
]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_other_blocks_than_512_are_detected_and_their_size_is_asked_for(tmp_path):
    path = write(tmp_path / "trace", *CHUNKED)
    assert detect(path) == "dynamo"
    with pytest.raises(MissingOption, match=r"hash_block_size: is not in the file.* --hash-block-size"):
        load(path, skip_bad=True)


def test_dynamo_is_in_milliseconds_and_exact(tmp_path):
    path = write(tmp_path / "trace", *CHUNKED)
    requests = load(path, hash_block_size=64).requests
    assert [(r.arrival_ms, r.hash_ids, r.hash_block_size) for r in requests] == [(0, (0, 1), 64), (1500, (0, 2), 64)]
    with pytest.raises(TraceError, match=":1: hash_ids: 2 ids, but 100 prompt tokens make 7 blocks of 16"):
        load(path, hash_block_size=16)


def test_timed_trace_is_in_seconds(tmp_path):
    path = write(tmp_path / "trace", {**CHUNKED[0], "timestamp": 0.25}, {**CHUNKED[1], "timestamp": 3})
    assert detect(path) == "timed_trace"
    assert [r.arrival_ms for r in load(path, hash_block_size=64).requests] == [250.0, 3000.0]


def test_a_mooncake_file_taken_for_blocks_of_16_is_refused_where_vllm_would_shorten_every_prompt():
    path = SAMPLES / "mooncake.jsonl"
    with pytest.raises(TraceError) as caught:
        load(path, format="timed_trace", hash_block_size=16)
    assert (caught.value.line, caught.value.reason) == (1, "too few hash ids")


def test_ids_past_the_end_of_a_prompt_are_left_out_and_it_is_said(tmp_path):
    trace = load(write(tmp_path / "trace", CHUNKED[0]), format="timed_trace", hash_block_size=100)
    assert trace.requests[0].hash_ids == (0,)
    assert "past the end" in trace.notes[0]


def test_the_aiperf_sample_has_a_turn_that_comes_later_than_the_row_below_it():
    trace = load(SAMPLES / "mooncake_aiperf.jsonl", bytes_per_token=4)
    assert trace.format == "aiperf"
    assert [(r.request_id, r.arrival_ms, r.num_prompt_tokens) for r in trace.requests] == [
        ("r0", 0.0, 600),
        ("r2", 0.0, 4),  # "made up words", 13 bytes
        ("r1", 1500.0, 900),
    ]
    assert [note.split()[0] for note in trace.notes] == ["rows", "later", "lengths"]


def test_a_turn_is_put_where_it_arrives_between_rows_with_times(tmp_path):
    rows = [
        {"timestamp": 0, "session_id": "a", "input_length": 10, "output_length": 1},
        {"timestamp": 5000, "input_length": 10, "output_length": 1},
        {"session_id": "a", "delay": 1000, "input_length": 20, "output_length": 1},
        {"session_id": "a", "delay": 9000, "input_length": 30, "output_length": 1},
    ]
    requests = load(write(tmp_path / "trace", *rows)).requests
    assert [(r.request_id, r.arrival_ms) for r in requests] == [("r0", 0), ("r2", 1000), ("r1", 5000), ("r3", 10_000)]


@pytest.mark.parametrize(
    ("bad", "reason"), [({"output_length": 0}, "no output"), ({"hash_ids": [1]}, "two predecessors")]
)
def test_a_skipped_row_does_not_move_the_clock(tmp_path, bad, reason):
    row = {"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    late = {**row, "input_length": 10, "hash_ids": [0], "timestamp": 99, **bad}
    path = write(tmp_path / "trace", {**row, "session_id": "a"}, late, {**row, "timestamp": 6})
    trace = load(path, format="aiperf", skip_bad=True)
    assert [r.arrival_ms for r in trace.requests] == [5.0, 6.0]
    assert trace.dropped == {reason: 1}


def test_rows_with_times_and_no_sessions_are_not_held_back(tmp_path):
    rows = [{"timestamp": time, "input_length": 10, "output_length": 1, "delay": 0} for time in (0, 1, 2)]
    reading = stream(write(tmp_path / "trace", *rows))
    assert reading.format == "aiperf"
    next(iter(reading))
    assert reading.rows_read == 1


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"output_length": 4}, "input_length", "malformed"),
        ({"input_length": 4, "text_input": "x", "output_length": 4}, "input_length", "malformed"),
        ({"text_input": 3, "output_length": 4}, "text_input", "malformed"),
        ({"timestamp": 9, "text_input": "", "output_length": 4}, "input_length", "no prompt"),
        ({"input_length": 4, "output_length": 4}, "timestamp", "malformed"),
        ({"timestamp": 4, "input_length": 4, "output_length": 4}, "timestamp", "time goes back"),
        ({"session_id": "a", "delay": -4, "input_length": 4, "output_length": 4}, "delay", "bad time"),
        ({"session_id": ["a"], "input_length": 4, "output_length": 4}, "session_id", "malformed"),
        ({"timestamp": 9, "input_length": 600, "output_length": 4, "hash_ids": [0]}, "hash_ids", "too few hash ids"),
    ],
)
def test_a_bad_row_of_aiperf_names_its_field(tmp_path, row, field, reason):
    first = {"timestamp": 5, "session_id": "a", "input_length": 10, "output_length": 1}
    with pytest.raises(TraceError) as caught:
        load(write(tmp_path / "trace", first, row), format="aiperf", bytes_per_token=4)
    assert (caught.value.line, caught.value.field, caught.value.reason) == (2, field, reason)


def test_a_prompt_is_given_once_as_a_length_or_a_text(tmp_path):
    for row, said in (({}, "are missing"), ({"input_length": 4, "text_input": "x"}, "are both given")):
        with pytest.raises(TraceError, match=f"input_length: and text_input {said}; give one of them"):
            load(write(tmp_path / "trace", {"output_length": 1, **row}), format="aiperf", bytes_per_token=4)


def test_a_turn_without_a_delay_follows_at_once(tmp_path):
    row = {"session_id": "a", "input_length": 4, "output_length": 1}
    trace = load(write(tmp_path / "trace", {**row, "timestamp": 7}, row, {**row, "delay": 0}))
    assert [r.arrival_ms for r in trace.requests] == [7.0, 7.0, 7.0]


def test_an_output_length_that_is_left_out_is_never_invented(tmp_path):
    path = write(tmp_path / "trace", {"input_length": 10, "hash_ids": [0]})
    with pytest.raises(MissingOption, match="--output-tokens"):
        load(path, skip_bad=True)
    trace = load(path, output_tokens=100)
    assert trace.requests[0].num_output_tokens == 100
    assert any("given 100 tokens" in note for note in trace.notes)
