"""Formats are found from the content, and a call gives all that was asked for or nothing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from kvproof_traces import FORMATS, SAMPLES, TraceError, detect, load

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2031-01-02 03:04:05.0000000,40,9\n"


@pytest.mark.parametrize(
    ("name", "format"), [("azure.csv", "azure"), ("mooncake.jsonl", "mooncake"), ("native.jsonl", "native")]
)
def test_the_format_is_found_whatever_the_file_is_called(tmp_path, name, format):
    path = tmp_path / "trace"
    path.write_bytes((SAMPLES / name).read_bytes())
    assert detect(path) == format
    assert load(path).format == format


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("when,how_long\n0.0,37\n", "header"),
        ('{"colour": 1, "input_length": 35, "output_length": 12}\n', "colour"),
        ("", "header"),
    ],
)
def test_an_unknown_format_lists_the_known_ones(tmp_path, text, field):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match="unknown trace format") as caught:
        load(path)
    assert (caught.value.line, caught.value.field) == (1, field)
    assert all(name in str(caught.value) for name in FORMATS)


def test_the_order_of_json_fields_says_nothing(tmp_path):
    path = tmp_path / "trace"
    rows = [json.loads(line) for line in (SAMPLES / "mooncake.jsonl").read_text().splitlines()]
    path.write_text("".join(json.dumps(dict(reversed(row.items()))) + "\n" for row in rows))
    assert load(path).requests == load(SAMPLES / "mooncake.jsonl").requests
    assert detect(path) == "mooncake"


def test_a_field_that_the_first_row_leaves_out_counts_as_well(tmp_path):
    path = tmp_path / "trace"
    row = {"timestamp": 0, "input_length": 40, "output_length": 9, "hash_ids": [0]}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "n": 2}) + "\n")
    assert detect(path) == "native"


def test_a_broken_first_line_is_not_taken_for_an_unknown_format(tmp_path):
    path = tmp_path / "trace"
    path.write_text('{"timestamp": 0, "input_le\n')
    with pytest.raises(TraceError, match=":1: line: is not JSON"):
        load(path)


def test_no_row_is_lost(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + ROW * 1000)
    trace = load(path)
    assert trace.rows_read == len(trace.requests) == 1000
    assert [request.request_id for request in trace.requests] == [f"r{index}" for index in range(1000)]


def test_a_bad_last_row_leaves_nothing_half_loaded(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + ROW * 1000 + "2031-01-02 03:04:06,40\n")
    with pytest.raises(TraceError, match=":1002: GeneratedTokens: is missing"):
        load(path)


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (3, 3), (4, 3), (None, 3)])
def test_a_limit_takes_the_first_rows(limit, rows):
    trace = load(SAMPLES / "azure.csv", limit=limit)
    assert trace.requests == load(SAMPLES / "azure.csv").requests[:limit]
    assert trace.rows_read == rows


def test_rows_past_the_limit_are_not_looked_at(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + ROW + "cut off")
    assert load(path, limit=1).rows_read == 1


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_of_requests_is_refused(limit):
    with pytest.raises(ValueError, match="limit"):
        load(SAMPLES / "azure.csv", limit=limit)


def test_a_format_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ValueError, match="'azur'; known are azure, "):
        load(SAMPLES / "azure.csv", format="azur")


def test_a_file_without_a_request_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    with pytest.raises(TraceError, match="holds no request"):
        load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such\.csv"):
        load(tmp_path / "no such.csv")


def test_an_error_survives_the_way_from_a_worker_process(tmp_path):
    error = TraceError(tmp_path / "trace.csv", 3, "TIMESTAMP", "is wrong", "mend it", reason="bad time")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.line, copy.field, copy.reason) == (str(error), 3, "TIMESTAMP", "bad time")


def test_the_shelf_needs_numpy_and_nothing_else():
    probe = (
        "import sys; before = set(sys.modules); import kvproof_traces; "
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(names - set(sys.stdlib_module_names) - {'kvproof_traces', 'numpy'}))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
