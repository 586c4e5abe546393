"""Our own format carries everything a request has, exactly, and refuses what it doesn't know."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, FieldError, Request, TraceError, Workload, generate, load, write_native

ROW = {"timestamp": 0, "input_length": 40, "output_length": 9, "id": "a"}

EVERYTHING = Request(
    request_id="a request, ünique",
    arrival_ms=0.1 + 0.2,
    num_prompt_tokens=40,
    num_output_tokens=9,
    hash_ids=(2**63, 7, 8),
    hash_block_size=16,
    num_samples=4,
    forks=((0, 3, 2), (5, 1, 2), (5, 2, 9)),
    abort_after=7,
    priority=-3,
)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(path):
    with pytest.raises(TraceError) as caught:
        load(path, format="native")
    return caught.value


def test_every_field_comes_back_equal(tmp_path):
    plain = Request("b", 1.0, 40, 9)
    assert write_native(tmp_path / "trace.jsonl", [EVERYTHING, plain]) == 2
    trace = load(tmp_path / "trace.jsonl")
    assert trace.format == "native"
    assert trace.requests == (EVERYTHING, plain)


def test_writing_again_gives_the_same_bytes(tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_native(first, generate(Workload(num_requests=50), seed=3))
    write_native(second, load(first).requests)
    assert first.read_bytes() == second.read_bytes()


def test_a_mooncake_file_is_a_native_file():
    as_native = load(SAMPLES / "mooncake.jsonl", format="native")
    assert as_native.requests == load(SAMPLES / "mooncake.jsonl", format="mooncake").requests


def test_the_documented_row_is_read(tmp_path):
    row = {**ROW, "hash_ids": [0], "id": "r0", "n": 4, "fork_at": [[5, 1, 2]], "abort_at": 7, "priority": 1}
    (request,) = load(write(tmp_path / "trace.jsonl", row)).requests
    assert request == Request("r0", 0.0, 40, 9, (0,), 512, 4, ((5, 1, 2),), 7, 1)


def test_only_times_and_lengths_are_required(tmp_path):
    row = {"timestamp": 0, "input_length": 40, "output_length": 9}
    requests = load(write(tmp_path / "trace.jsonl", row, row)).requests
    assert requests == (Request("r0", 0.0, 40, 9), Request("r1", 0.0, 40, 9))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prioritty": 1}, "prioritty"),
        ({"timestamp": -0.5}, "timestamp"),
        ({"timestamp": "0"}, "timestamp"),
        ({"timestamp": 2**60 + 1}, "timestamp"),
        ({"id": ""}, "id"),
        ({"id": 3}, "id"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": None}, "n"),
        ({"hash_block_size": 0}, "hash_block_size"),
        ({"hash_ids": [1, 2]}, "hash_ids"),
        ({"abort_at": 9}, "abort_at"),
        ({"abort_at": None}, "abort_at"),
        ({"abort_at": -1}, "abort_at"),
        ({"priority": 0.5}, "priority"),
        ({"fork_at": 5}, "fork_at"),
        ({"fork_at": [5, 0, 1]}, "fork_at"),
        ({"fork_at": [[5, 0]]}, "fork_at"),
        ({"fork_at": [[5, 1, 2]]}, "fork_at"),
        ({"fork_at": [[5, 0, 0]]}, "fork_at"),
        ({"fork_at": [[9, 0, 1]]}, "fork_at"),
        ({"fork_at": [[5, 0, 1], [4, 0, 2]]}, "fork_at"),
        ({"fork_at": [[5, 0, "1"]]}, "fork_at"),
    ],
)
def test_a_bad_value_names_the_field_as_the_file_calls_it(tmp_path, change, field):
    error = refusal(write(tmp_path / "trace.jsonl", {**ROW, "id": "first"}, {**ROW, **change}))
    assert (error.line, error.field) == (2, field)
    assert error.cure


def test_an_id_given_twice_is_refused(tmp_path):
    error = refusal(write(tmp_path / "trace.jsonl", ROW, ROW))
    assert (error.line, error.field) == (2, "id")


def test_the_same_hash_id_may_mean_another_block_at_another_block_size(tmp_path):
    rows = [
        {**ROW, "id": "a", "hash_ids": [0, 1, 2], "hash_block_size": 16},
        {**ROW, "id": "b", "hash_ids": [1], "hash_block_size": 64},
    ]
    assert load(write(tmp_path / "trace.jsonl", *rows)).rows_read == 2


def test_a_request_built_by_hand_is_checked_as_well():
    with pytest.raises(FieldError, match="num_output_tokens: 0 is below 1"):
        Request("a", 0.0, 40, 0)


@pytest.mark.parametrize("ms", [-0.5, float("inf"), float("nan"), 3])
def test_a_time_is_a_finite_float_from_0(ms):
    with pytest.raises(FieldError, match="is not a time"):
        Request("a", ms, 40, 9)


def test_the_smallest_of_everything_is_a_request(tmp_path):
    smallest = Request("a", 0.0, 1, 1, (0,), 1, 1, ((0, 0, 1),), 0, 0)
    write_native(tmp_path / "trace.jsonl", [smallest])
    assert load(tmp_path / "trace.jsonl").requests == (smallest,)


def test_a_field_at_its_default_is_not_written(tmp_path):
    write_native(tmp_path / "trace.jsonl", [Request("a", 1.0, 40, 9)])
    row = {"timestamp": 1, "input_length": 40, "output_length": 9, "id": "a"}
    assert (tmp_path / "trace.jsonl").read_text() == json.dumps(row) + "\n"


def test_a_request_needs_room_for_all_its_branches():
    assert EVERYTHING.num_branches == 5
    assert Request("b", 0.0, 40, 9, num_samples=2, forks=((1, 0, 1),)).num_branches == 2


def test_a_request_of_a_billion_samples_is_no_burden():
    assert Request("b", 0.0, 40, 9, num_samples=10**9, forks=((1, 0, 10**9),)).num_branches == 10**9 + 1


NAMED = '{{"timestamp": 0, "input_length": 1, "output_length": {1}, "id": "{0}"}}'


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["a", "b", "a"], 3),
        (["r1", None], 2),  # the second row's own name is taken
        ([None, "r0"], 2),
        (["x", "r0"], None),  # the first row is called otherwise, so that its name is free
        (["x", "r0", "r0"], 3),
        (["r2", "r1", "r0"], None),
        ([None, None, "r1"], 3),
        (["r007", None], None),
    ],
)
def test_a_name_is_given_once_whether_it_is_written_or_the_number_of_the_row(tmp_path, names, line):
    row = NAMED.replace(', "id": "{0}"', "")
    text = "\n".join(NAMED.format(name, 1) if name else row.format(None, 1) for name in names)
    (tmp_path / "x.jsonl").write_text(text)
    if line is None:
        assert len(load(tmp_path / "x.jsonl").requests) == len(names)
        return
    with pytest.raises(TraceError, match=rf":{line}: id: .* was given before"):
        load(tmp_path / "x.jsonl")


def test_the_name_of_a_row_that_was_dropped_is_free(tmp_path):
    rows = [NAMED.format("r0", 0), NAMED.format("r0", 1), NAMED.format("r0", 1)]
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    trace = load(tmp_path / "x.jsonl", skip_bad=True)
    assert [request.request_id for request in trace.requests] == ["r0"]
    assert trace.dropped == {"no output": 1, "id given twice": 1}
