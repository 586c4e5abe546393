"""Rows are read one by one, and each is kept or counted by the reason for which it was not."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from itertools import islice

import pytest

from kvproof_traces import REASONS, SAMPLES, Stream, TraceError, load, stream

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = {"timestamp": 3, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_the_dirty_azure_sample_gives_one_row_and_says_why_not_the_others():
    trace = load(SAMPLES / "azure_dirty.csv", skip_bad=True)
    assert len(trace.requests) == 1
    assert trace.dropped == {"time goes back": 2, "bad time": 1}
    assert trace.rows_read == 4


def test_the_dirty_mooncake_sample_has_a_reason_for_every_row():
    rows = stream(SAMPLES / "mooncake_dirty.jsonl", format="mooncake", skip_bad=True)
    assert list(rows) == []
    assert rows.dropped == {"too few hash ids": 2, "malformed": 1, "empty line": 1}
    assert rows.rows_read == 4


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({**ROW, "hash_ids": [0]}, "too few hash ids"),
        ({**ROW, "hash_ids": [0, 1, 2]}, "too many hash ids"),
        ({**ROW, "hash_ids": [2, 1]}, "two predecessors"),
        ({**ROW, "timestamp": 2}, "time goes back"),
        ({**ROW, "timestamp": -2}, "bad time"),
        ({**ROW, "output_length": 0}, "no output"),
        ({**ROW, "input_length": 0}, "no prompt"),
        ({**ROW, "input_length": -1}, "bad number"),
        ("", "empty line"),
        ("{", "malformed"),
        ({**ROW, "colour": 1}, "malformed"),
    ],
)
def test_a_skipped_row_is_counted_under_the_check_it_failed(tmp_path, bad, reason):
    path = write(tmp_path / "trace", [ROW, bad, ROW])
    trace = load(path, format="mooncake", skip_bad=True)
    assert trace.dropped == {reason: 1}
    assert (len(trace.requests), trace.rows_read) == (2, 3)
    with pytest.raises(TraceError) as caught:
        load(path, format="mooncake")
    assert (caught.value.line, caught.value.reason) == (2, reason)
    assert reason in REASONS


def test_a_skipped_row_leaves_nothing_behind_that_refuses_the_next(tmp_path):
    bad = [{**ROW, "hash_ids": [5, 1]}, {**ROW, "timestamp": 99, "output_length": 0}]
    good = {**ROW, "hash_ids": [0, 5]}
    trace = load(write(tmp_path / "trace", [ROW, *bad, good]), format="mooncake", skip_bad=True)
    assert trace.dropped == {"two predecessors": 1, "no output": 1}
    assert [request.request_id for request in trace.requests] == ["r0", "r3"]


def test_no_trait_of_a_skipped_row_is_held_against_a_later_one(tmp_path):
    row = {"timestamp": 5, "input_length": 40, "output_length": 9, "id": "a", "hash_ids": [0]}
    bad = [{**row, "id": "b", "timestamp": 4, "hash_ids": [7]}, {**row, "id": "c", "input_length": 600}]
    later = [{**row, "id": "b", "input_length": 600, "hash_ids": [0, 7]}, {**row, "id": "c"}]
    trace = load(write(tmp_path / "trace", [row, *bad, *later]), format="native", skip_bad=True)
    assert trace.dropped == {"time goes back": 1, "too few hash ids": 1}
    assert [request.request_id for request in trace.requests] == ["a", "b", "c"]


def test_when_every_row_is_bad_the_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="holds no request"):
        load(write(tmp_path / "trace", [{**ROW, "output_length": 0}]), format="mooncake", skip_bad=True)


def test_the_counts_grow_as_rows_are_read():
    rows = stream(SAMPLES / "azure.csv")
    assert rows.rows_read == 0
    next(iter(rows))
    assert (rows.rows_read, rows.num_kept) == (1, 1)


def test_a_row_that_gets_lost_inside_is_noticed(monkeypatch):
    module = sys.modules[Stream.__module__]
    monkeypatch.setattr(module, "_in_order_of_arrival", lambda requests, horizon: list(requests)[:2])
    with pytest.raises(AssertionError, match="1 rows are neither kept nor dropped"):
        list(stream(SAMPLES / "mooncake_aiperf.jsonl", bytes_per_token=4))


def test_a_stream_is_read_once():
    rows = stream(SAMPLES / "azure.csv")
    assert len(list(rows)) == 3
    with pytest.raises(RuntimeError, match="open another stream"):
        list(rows)


def test_a_limit_leaves_out_rows_that_were_read_ahead():
    rows = stream(SAMPLES / "mooncake_aiperf.jsonl", bytes_per_token=4)
    assert [request.request_id for request in islice(rows, 2)] == ["r0", "r2"]
    assert (rows.rows_read, rows.num_kept, rows.num_held_back) == (3, 2, 1)
    assert load(SAMPLES / "mooncake_aiperf.jsonl", limit=2, bytes_per_token=4).rows_read == 2


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "trace.csv"
    with path.open("w") as file:
        file.write(AZURE)
        file.writelines(f"2031-01-02 03:04:{second:02}.0000000,40,9\n" for second in range(50) for _ in range(200))
    peaks = []
    for num_rows in (1_000, 10_000):
        tracemalloc.start()
        assert sum(1 for _ in islice(stream(path), num_rows)) == num_rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 9,000 more requests would be megabytes.
    assert abs(peaks[1] - peaks[0]) < 100_000


def test_an_option_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ValueError, match=r"hash_blocksize: unknown option; known are .*hash_block_size"):
        stream(SAMPLES / "azure.csv", hash_blocksize=16)


@pytest.mark.parametrize("option", [{"hash_block_size": 1}, {"output_tokens": 1}, {"bytes_per_token": 0.25}])
def test_the_smallest_options_are_taken(option):
    assert len(list(stream(SAMPLES / "azure.csv", **option))) == 3


@pytest.mark.parametrize(
    "option",
    [
        {"hash_block_size": 0},
        {"output_tokens": 1.5},
        *({"bytes_per_token": value} for value in (0, -1.0, float("nan"), float("inf"))),
    ],
)
def test_an_option_that_can_not_be_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        stream(SAMPLES / "azure.csv", **option)


def test_a_pipe_is_refused_because_looking_at_it_would_lose_rows():
    reading, writing = os.pipe()
    os.write(writing, (SAMPLES / "azure.csv").read_bytes())
    os.close(writing)
    with os.fdopen(reading), pytest.raises(ValueError, match="is no regular file"):
        stream(f"/dev/fd/{reading}")


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no regular file"):
        stream(tmp_path / "pipe")
