"""BurstGPT's traps: columns that move between versions, failed calls, seconds from midnight."""

from __future__ import annotations

import pytest

from kvproof_traces import SAMPLES, TraceError, load
from kvproof_traces.burstgpt import HEADERS

ROWS = ["3,ChatGPT,210,44,254,Conversation log", "3.5,GPT-4,7,1,8,API log"]


def write(path, *rows, header=HEADERS[0]):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_version_1_counts_its_failed_calls():
    trace = load(SAMPLES / "burstgpt_v1.csv", skip_bad=True)
    assert (trace.format, trace.rows_read, trace.dropped) == ("burstgpt", 3, {"failed call": 2})
    with pytest.raises(TraceError, match=":3: Response tokens: is 0: the call failed"):
        load(SAMPLES / "burstgpt_v1.csv")


def test_version_3_is_read_by_the_names_of_its_columns():
    requests = load(SAMPLES / "burstgpt_v3.csv").requests
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [(210, 44), (60, 8)]
    assert [(r.request_id, r.arrival_ms) for r in requests] == [("r0", 0.0), ("r1", 1500.0)]


def test_columns_in_any_order_mean_the_same(tmp_path):
    header = "Total tokens,Response tokens,Log Type,Timestamp,Request tokens,Model"
    rows = ["254,44,Conversation log,3,210,ChatGPT", "8,1,API log,3.5,7,GPT-4"]
    moved = load(write(tmp_path / "moved", *rows, header=header))
    assert moved.requests == load(write(tmp_path / "plain", *ROWS)).requests


def test_a_session_id_may_be_empty(tmp_path):
    assert load(write(tmp_path / "trace", "3,,1.5,GPT-4,60,8,68,API log", header=HEADERS[1])).rows_read == 1


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ("2,GPT-4,7,1,8,API log", "Timestamp", "time goes back"),
        ("1e999,GPT-4,7,1,8,API log", "Timestamp", "bad time"),
        ("0x9,GPT-4,7,1,8,API log", "Timestamp", "bad time"),
        ("9.,GPT-4,7,1,8,API log", "Timestamp", "bad time"),
        ("-1,GPT-4,7,1,8,API log", "Timestamp", "bad time"),
        ("nan,GPT-4,7,1,8,API log", "Timestamp", "bad time"),
        ("9,GPT-4,0,0,0,API log", "Response tokens", "failed call"),
        ("9,GPT-4,0,4,4,API log", "Request tokens", "no prompt"),
        ("9,GPT-4,7,1,9,API log", "Total tokens", "wrong total"),
        ("9,GPT-4,7,1.0,8,API log", "Response tokens", "bad number"),
        ("9,GPT-4,7,1,8", "Log Type", "malformed"),
    ],
)
def test_a_bad_row_names_its_column_and_its_check(tmp_path, row, field, reason):
    with pytest.raises(TraceError) as caught:
        load(write(tmp_path / "trace", *ROWS, row))
    assert (caught.value.line, caught.value.field, caught.value.reason) == (4, field, reason)


def test_a_failed_first_call_does_not_start_the_clock(tmp_path):
    path = write(tmp_path / "trace", "1,GPT-4,7,0,7,API log", *ROWS)
    assert [r.arrival_ms for r in load(path, skip_bad=True).requests] == [0.0, 500.0]


def test_both_times_are_named_where_time_goes_back(tmp_path):
    with pytest.raises(TraceError, match="Timestamp: 2500 ms comes after 3500 ms; sort the file by time"):
        load(write(tmp_path / "trace", *ROWS, "2.5,GPT-4,7,1,8,API log"))


def test_an_empty_file_lacks_its_header(tmp_path):
    (tmp_path / "trace").write_bytes(b"")
    with pytest.raises(TraceError, match=":1: Timestamp: is not a column of the header"):
        load(tmp_path / "trace", format="burstgpt")


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path / "trace", header=HEADERS[0].replace("Total tokens,", ""))
    with pytest.raises(TraceError, match=":1: Total tokens: is not a column of the header"):
        load(path, format="burstgpt")
