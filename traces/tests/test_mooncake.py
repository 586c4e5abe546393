"""The traps of Mooncake's JSON Lines: 512-token blocks, chained ids, order of time, and rows that must be refused."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, TraceError, load

GOOD = {"timestamp": 3, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def refusal(path):
    with pytest.raises(TraceError) as caught:
        load(path, format="mooncake")
    return caught.value


def test_the_sample_is_read_in_milliseconds_and_blocks_of_512():
    trace = load(SAMPLES / "mooncake.jsonl")
    assert (trace.format, trace.rows_read) == ("mooncake", 3)
    assert [request.arrival_ms for request in trace.requests] == [0.0, 0.0, 3000.0]
    assert [request.hash_ids for request in trace.requests] == [(0, 1, 2), (0, 1, 3), (0,)]
    assert {request.hash_block_size for request in trace.requests} == {512}


def test_the_dirty_sample_is_refused_at_its_first_bad_line():
    error = refusal(SAMPLES / "mooncake_dirty.jsonl")
    assert (error.line, error.field) == (1, "hash_ids")
    assert "2 ids, but 1100 prompt tokens make 3 blocks of 512" in str(error)


@pytest.mark.parametrize(("line", "field"), [(2, "hash_ids"), (3, "hash_ids"), (4, "line")])
def test_every_dirty_row_is_refused(tmp_path, line, field):
    row = (SAMPLES / "mooncake_dirty.jsonl").read_text().split("\n")[line - 1]
    error = refusal(write(tmp_path / "trace.jsonl", {**GOOD, "timestamp": 0}, row))
    assert (error.line, error.field) == (2, field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timestamp": 2}, "timestamp"),
        ({"timestamp": 3.5}, "timestamp"),
        ({"timestamp": True}, "timestamp"),
        ({"timestamp": "3"}, "timestamp"),
        ({"timestamp": -1}, "arrival_ms"),
        ({"output_length": 0}, "output_length"),
        ({"output_length": 9.0}, "output_length"),
        ({"output_length": None}, "output_length"),
        ({"input_length": True}, "input_length"),
        ({"input_length": -600}, "input_length"),
        ({"hash_ids": [0, 1, 2]}, "hash_ids"),
        ({"hash_ids": []}, "hash_ids"),
        ({"hash_ids": [0, "1"]}, "hash_ids"),
        ({"hash_ids": [0, -1]}, "hash_ids"),
        ({"hash_ids": "01"}, "hash_ids"),
        ({"session_id": "s"}, "session_id"),
    ],
)
def test_a_bad_value_names_its_field(tmp_path, change, field):
    field = "timestamp" if field == "arrival_ms" else field
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, {**GOOD, **change}, GOOD))
    assert (error.line, error.field) == (2, field)


@pytest.mark.parametrize("field", list(GOOD))
def test_a_missing_field_is_named(tmp_path, field):
    row = {name: value for name, value in GOOD.items() if name != field}
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, row))
    assert (error.line, error.field, error.what) == (2, field, "is missing")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ('{"timestamp": 3, "input_length": 600, "outp', "line"),
        ("[1, 2]", "line"),
        (json.dumps(GOOD) + json.dumps(GOOD), "line"),
        (json.dumps(GOOD)[:-1] + ', "timestamp": 4}', "timestamp"),
        (json.dumps({**GOOD, "timestamp": float("nan")}), "line"),
        ("[" * 100_000, "line"),
        ('{"timestamp": ' + "9" * 5000 + "}", "line"),
    ],
)
def test_what_is_no_object_of_its_own_on_a_line_is_refused(tmp_path, row, field):
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, row))
    assert (error.line, error.field) == (2, field)


def test_both_predecessors_are_named(tmp_path):
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, {**GOOD, "hash_ids": [1, 0]}))
    assert error.what == "id 1 at position 0 follows nothing here and id 0 before"
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, {**GOOD, "hash_ids": [2, 0]}))
    assert error.what == "id 0 at position 1 follows id 2 here and nothing before"


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([1, 0], id="an id at two positions"),
        pytest.param([7, 1], id="an id after two others, so a hit after a miss"),
        pytest.param([0, 0], id="an id twice in one prompt"),
    ],
)
def test_ids_that_do_not_name_prefixes_are_refused(tmp_path, ids):
    error = refusal(write(tmp_path / "trace.jsonl", GOOD, {**GOOD, "hash_ids": ids}))
    assert (error.line, error.field) == (2, "hash_ids")
    assert "follows" in error.what


@pytest.mark.parametrize(
    ("name", "num_rows", "mean_prompt", "mean_output", "token_hit_rate"),
    [
        ("mooncake_conversation_trace.jsonl", 12_031, 12_035, 343, 0.374),
        ("mooncake_synthetic_trace.jsonl", 3_993, 15_326, 149, 0.651),
    ],
)
def test_the_real_files_have_their_measured_figures(
    real_trace, name, num_rows, mean_prompt, mean_output, token_hit_rate
):
    requests = load(real_trace(name)).requests
    assert len(requests) == num_rows
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    assert num_prompt_tokens / num_rows == pytest.approx(mean_prompt, abs=1)  # 15,325.48 in the second
    assert sum(request.num_output_tokens for request in requests) / num_rows == pytest.approx(mean_output, abs=0.5)
    seen, num_shared = set(), 0
    for request in requests:
        num_known = sum(value in seen for value in request.hash_ids)
        num_shared += min(num_known * 512, request.num_prompt_tokens)
        seen.update(request.hash_ids)
    assert num_shared / num_prompt_tokens == pytest.approx(token_hit_rate, abs=0.0005)
