"""Formats of simulators: Vidur, Sarathi, DistServe and LLMServingSim."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, TraceError, detect, load


def lengths(trace):
    return [(r.arrival_ms, r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests]


def write(path, text):
    path.write_text(text)
    return path


def write_rows(path, *rows):
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_vidur_is_in_seconds():
    trace = load(SAMPLES / "vidur.csv")
    assert trace.format == "vidur"
    assert lengths(trace) == [(0.0, 37, 4), (1250.0, 900, 1)]


def test_small_times_have_an_exponent_where_a_program_wrote_them(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,37,4\n9.5e-05,900,1\n199.96150599999999,161,11\n"
    requests = load(write(tmp_path / "trace", text)).requests
    assert [r.arrival_ms for r in requests] == [0.0, 0.095, 199961.506]


def test_sarathi_has_no_times_and_says_so(tmp_path):
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n37,4,41,9.25\n900,1,901,900.0\n"
    trace = load(write(tmp_path / "trace", text))
    assert trace.format == "sarathi"
    assert lengths(trace) == [(0.0, 37, 4), (0.0, 900, 1)]
    assert trace.notes == ("the file has no arrival times: every request arrives at 0",)


def test_a_total_that_is_none_is_refused(tmp_path):
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n37,4,42,9.25\n"
    with pytest.raises(TraceError, match=":2: num_total_tokens: 42 is not 37"):
        load(write(tmp_path / "trace", text))


def test_distserve_counts_from_its_first_request_and_leaves_results_out(tmp_path):
    rows = [
        {"prompt_len": 37, "output_len": 4, "start_time": 1700000000.5, "end_time": 1700000009.0},
        {"prompt_len": 900, "output_len": 1, "start_time": 1700000001.75},
    ]
    trace = load(write(tmp_path / "trace", json.dumps(rows)))
    assert trace.format == "distserve"
    assert lengths(trace) == [(0.0, 37, 4), (1250.0, 900, 1)]
    assert trace.notes == ("left out, as results of a run: end_time",)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"start_time": 1}, "start_time", "time goes back"),
        ({"start_time": None}, "[1].start_time", "bad time"),
        ({"output_len": 0}, "[1].output_len", "no output"),
        ({"prompt_len": 1.5}, "[1].prompt_len", "bad number"),
    ],
)
def test_a_bad_request_of_distserve_is_named(tmp_path, change, field, reason):
    good = {"prompt_len": 37, "output_len": 4, "start_time": 2}
    path = write(tmp_path / "trace", json.dumps([good, {**good, **change}]))
    with pytest.raises(TraceError) as caught:
        load(path)
    assert (caught.value.field, caught.value.reason) == (field, reason)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"prompt_len": 3, "output_len": 4}, ":1: [1].start_time: is missing; a request needs prompt_len"),
        ([3, 4, 5], ":1: [1]: is a JSON list; give an object for each request"),
    ],
)
def test_what_is_no_request_of_distserve_is_refused(tmp_path, item, said):
    path = write(tmp_path / "trace", json.dumps([{"prompt_len": 37, "output_len": 4, "start_time": 2}, item]))
    with pytest.raises(TraceError) as caught:
        load(path)
    assert said in str(caught.value)


def test_vidur_and_sarathi_name_requests_by_their_row(tmp_path):
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n37,4,41,9.25\n"
    assert [r.request_id for r in load(write(tmp_path / "trace", text)).requests] == ["r0"]
    assert [r.request_id for r in load(SAMPLES / "vidur.csv").requests] == ["r0", "r1"]


def test_llmservingsim_mixes_requests_and_sessions_in_nanoseconds():
    trace = load(SAMPLES / "llmservingsim.jsonl")
    assert trace.format == "llmservingsim"
    assert trace.rows_read == 3
    assert lengths(trace) == [(0.001, 4, 2), (0.002, 10, 3), (0.0025, 16, 2)]
    assert any("as early as they can" in note for note in trace.notes)


def test_a_session_that_lasts_does_not_hold_up_the_order_of_arrival(tmp_path):
    session = [{"input_toks": 1, "output_toks": 1, "tool_duration_ns": 5_000_000}] * 3
    rows = [
        {"session_id": "t", "arrival_time_ns": 0, "sub_requests": session},
        *({"input_toks": 2, "output_toks": 1, "arrival_time_ns": ms * 1_000_000} for ms in (3, 7)),
    ]
    requests = load(write_rows(tmp_path / "trace", *rows)).requests
    assert [(r.request_id, r.arrival_ms) for r in requests] == [
        ("r0.0", 0),
        ("r1", 3),
        ("r0.1", 5),
        ("r2", 7),
        ("r0.2", 10),
    ]


def test_a_skipped_request_does_not_move_the_clock(tmp_path):
    rows = [
        {"input_toks": 1, "output_toks": output, "arrival_time_ns": ns}
        for ns, output in ((5000, 1), (9000, 0), (6000, 1))
    ]
    trace = load(write_rows(tmp_path / "trace", *rows), skip_bad=True)
    assert [r.arrival_ms for r in trace.requests] == [0.005, 0.006]
    assert trace.dropped == {"no output": 1}


def test_token_ids_give_prefixes_once_a_block_size_is_given(tmp_path):
    rows = [
        {"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [1, 2, 3, 4, 5]},
        {"input_toks": 6, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [1, 2, 3, 9, 5, 6]},
        {"input_toks": 4, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [3, 4, 1, 2]},
    ]
    path = write_rows(tmp_path / "trace", *rows)
    assert [r.hash_ids for r in load(path, hash_block_size=2).requests] == [(0, 1, 2), (0, 3, 4), (5, 6)]
    assert "a hash block size would show" in load(path).notes[0]


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"input_toks": 4, "output_toks": 2, "arrival_time_ns": 0}, "arrival_time_ns", "time goes back"),
        ({"input_toks": 4, "arrival_time_ns": 9}, "output_toks", "malformed"),
        ({"input_toks": 4, "output_toks": 0, "arrival_time_ns": 9}, "output_toks", "no output"),
        (
            {"input_toks": 4, "output_toks": 2, "arrival_time_ns": 9, "input_tok_ids": [1]},
            "input_tok_ids",
            "token ids differ",
        ),
        (
            {"input_toks": 2, "output_toks": 2, "arrival_time_ns": 9, "input_tok_ids": [1, [2]]},
            "input_tok_ids",
            "bad number",
        ),
        ({"session_id": "t", "arrival_time_ns": 9, "sub_requests": []}, "sub_requests", "malformed"),
        ({"session_id": "t", "arrival_time_ns": 9, "sub_requests": [{"input_toks": 1}]}, "output_toks", "malformed"),
    ],
)
def test_a_bad_row_of_llmservingsim_is_named_and_counted_once(tmp_path, row, field, reason):
    path = write_rows(tmp_path / "trace", {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 5}, row)
    with pytest.raises(TraceError) as caught:
        load(path, format="llmservingsim")
    assert (caught.value.line, caught.value.field, caught.value.reason) == (2, field, reason)
    assert load(path, format="llmservingsim", skip_bad=True).dropped == {reason: 1}


def test_what_is_about_the_simulated_cluster_is_left_out_and_it_is_said(tmp_path):
    row = {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 5, "failover_mode": "cold", "target_instance_id": 1}
    trace = load(write_rows(tmp_path / "trace", row))
    assert trace.format == "llmservingsim"
    assert trace.notes == ("left out, as settings of the simulated cluster: failover_mode, target_instance_id",)


def test_a_first_row_that_is_a_session_is_detected(tmp_path):
    row = {"session_id": "t", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 1}]}
    assert detect(write_rows(tmp_path / "trace", row)) == "llmservingsim"
