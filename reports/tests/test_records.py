"""A results file: what is written is read back, and what is wrong is named."""

import gzip
import json
import subprocess
import sys

import pytest

from kvproof_reports.content import MAX_LINE_BYTES
from kvproof_reports.records import FILE_NAME, RecordError, RunWriter, read_run
from kvproof_reports.validate import MOST_FAULTS

LAW = {
    "law": "G18",
    "sentence": "Reading through the table gives the tokens that were written.",
    "test": "suites/kernel/test_needle.py::test_needle[fp16]",
    "implementation": "triton",
    "outcome": "verified",
    "seconds": 0.25,
    "error_to_bound": 0.5,
}
BENCHMARK = {
    "group": "decode",
    "implementation": "torch",
    "block_size": 16,
    "table": "shuffled",
    "batch": 4,
    "context_len": 1024,
    "num_q_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "dtype": "float32",
    "device": "cpu",
    "timed": True,
    "verified": True,
    "median_ms": 2.0,
    "q1_ms": 1.9,
    "q3_ms": 2.2,
    "num_samples": 50,
}


def test_what_was_written_is_read_back_with_every_field(tmp_path):
    writer = RunWriter(tmp_path / "first")
    law = writer.write("law", **LAW)
    benchmark = writer.write("benchmark", **BENCHMARK)

    run = read_run(tmp_path / "first")

    assert run.run_id == "first"
    assert run.records == (law, benchmark)
    assert law["case"] is None
    assert run.notes == ()
    assert read_run(writer.path).records == run.records


def test_the_later_of_two_records_of_one_test_wins_and_keeps_its_place(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write("law", **LAW)
    writer.write("law", **{**LAW, "implementation": "torch"})
    writer.write("law", **{**LAW, "outcome": "broken", "reason": "position 7 was read twice"})

    latest = read_run(tmp_path).latest("law")

    assert [(record["implementation"], record["outcome"]) for record in latest] == [
        ("triton", "broken"),
        ("torch", "verified"),
    ]


def test_a_record_id_names_run_kind_and_identity_and_nothing_else(tmp_path):
    writer = RunWriter(tmp_path / "a")
    first = writer.write("benchmark", **BENCHMARK)

    assert writer.write("benchmark", **{**BENCHMARK, "median_ms": 3.0})["record_id"] == first["record_id"]
    assert writer.write("benchmark", **{**BENCHMARK, "block_size": 32})["record_id"] != first["record_id"]
    assert RunWriter(tmp_path / "b").write("benchmark", **BENCHMARK)["record_id"] != first["record_id"]


def test_an_infinite_ratio_survives_though_json_has_no_infinity(tmp_path):
    broken = {**LAW, "outcome": "broken", "reason": "NaN", "error_to_bound": float("inf")}
    written = RunWriter(tmp_path).write("law", **broken)

    assert read_run(tmp_path).records == (written,)
    assert written["error_to_bound"] == float("inf")
    assert json.loads((tmp_path / FILE_NAME).read_text(), parse_constant=pytest.fail)["error_to_bound"] == "inf"


def test_a_failure_that_tells_megabytes_leaves_a_file_that_can_be_read(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write("law", **LAW | {"outcome": "broken", "reason": "first" + 20_000_000 * "\N{SNAKE}" + "last"})
    ((told,),) = [[record["reason"] for record in read_run(tmp_path).records]]
    assert told.startswith("first")
    assert told.endswith("last")
    assert "... (19,800,009 characters are left out) ..." in told
    assert len(writer.path.read_bytes()) < MAX_LINE_BYTES


@pytest.mark.parametrize("by_writer", [True, False], ids=["written", "of a stranger"])
def test_a_lone_surrogate_becomes_its_escape_which_every_file_and_database_takes(tmp_path, by_writer):
    writer = RunWriter(tmp_path)
    writer.write("law", **LAW | {"outcome": "broken", "reason": "lone \ud800" if by_writer else "lone @"})
    if not by_writer:
        writer.path.write_bytes(writer.path.read_bytes().replace(b"@", rb"\ud800"))
    assert read_run(tmp_path).records[0]["reason"] == r"lone \ud800"


def test_two_sessions_of_one_run_are_both_kept(build):
    run = build("a")
    run.session(tier="smoke")
    run.session(tier="full")

    assert [session["tier"] for session in read_run(run.writer.folder).latest("session")] == ["smoke", "full"]


def test_a_torn_last_line_is_noted_and_the_rest_is_kept(tmp_path):
    writer = RunWriter(tmp_path)
    kept = writer.write("law", **LAW)
    with writer.path.open("a") as file:
        file.write('{"schema_version": 1, "kind": "la')

    run = read_run(tmp_path)

    assert run.records == (kept,)
    assert run.notes == (f"{FILE_NAME}:2: torn line left out: the run was killed while writing it",)


def test_a_run_taken_up_again_after_a_torn_line_loses_nothing_else(tmp_path):
    first = RunWriter(tmp_path).write("law", **LAW)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"schema_version": 1, "ki')
    second = RunWriter(tmp_path).write("benchmark", **BENCHMARK)

    run = read_run(tmp_path)

    assert run.records == (first, second)
    assert len(run.notes) == 1


def test_a_whole_last_record_without_its_newline_is_not_torn(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write("law", **LAW)
    writer.path.write_bytes(writer.path.read_bytes().rstrip(b"\n"))
    RunWriter(tmp_path).write("benchmark", **BENCHMARK)

    run = read_run(tmp_path)

    assert [record["kind"] for record in run.records] == ["law", "benchmark"]
    assert run.notes == ()


def test_a_broken_line_in_the_middle_is_an_error_with_file_and_line(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write("law", **LAW)
    writer.path.write_text("{oops}\n" + writer.path.read_text())

    with pytest.raises(RecordError, match=rf"{FILE_NAME}:1: line: not JSON"):
        read_run(tmp_path)


WRONG = {
    "an unknown outcome": ("law", {"outcome": "passed"}, "outcome: 'passed' is not one of verified, broken, refused"),
    "a field that is missing": ("law", {"sentence": None}, "sentence: missing"),
    "a mistyped name": ("law", {"sentense": "x"}, "sentense: unknown field; did you mean sentence?"),
    "a text for a number": ("law", {"seconds": "0.1"}, "seconds: '0.1' is not a finite number >= 0"),
    "a flag for a count": ("benchmark", {"batch": True}, "batch: True is not an integer >= 0"),
    "no number": ("law", {"error_to_bound": float("nan")}, "error_to_bound: nan is not a number >= 0"),
    "an endless number": ("law", {"seconds": float("inf")}, "seconds: inf is not a finite number >= 0"),
    "a number beyond all that mean something": ("law", {"seconds": 1e101}, "seconds: 1e+101 is not a finite number"),
    "a ratio of what was refused": (
        "law",
        {"outcome": "refused", "reason": "no fp8"},
        'error_to_bound: must be null when outcome is "refused"',
    ),
    "broken without a reason": ("law", {"outcome": "broken"}, 'reason: missing, and needed when outcome is "broken"'),
    "a figure of what was not timed": (
        "benchmark",
        {"timed": False, "reason": "interpreter"},
        "median_ms: must be null when timed is false",
    ),
    "timed without samples": (
        "benchmark",
        {"num_samples": None},
        "num_samples: missing, and needed when timed is true",
    ),
    "decode without a table": ("benchmark", {"table": None}, 'table: missing, and needed when group is "decode"'),
    "an operation of a kernel": ("benchmark", {"operation": "fork"}, 'operation: must be null when group is "decode"'),
    "a nested fault": (
        "benchmark",
        {"resources": [{"target": "sm_90", "registers": -1}]},
        "resources[0].registers: -1 is not an integer >= 0",
    ),
    "a time without offset": ("law", {"time_utc": "2026-01-01T00:00:00"}, "is not an ISO 8601 time with its offset"),
}


@pytest.mark.parametrize(("kind", "change", "message"), WRONG.values(), ids=WRONG)
def test_the_writer_names_the_faulty_field_and_writes_nothing(tmp_path, kind, change, message):
    writer = RunWriter(tmp_path)

    with pytest.raises(RecordError) as caught:
        writer.write(kind, **{**(LAW if kind == "law" else BENCHMARK), **change})

    assert f"{kind} record: " in str(caught.value)
    assert message in str(caught.value)
    assert not writer.path.exists()


def test_the_reader_names_file_line_and_field_of_every_fault(tmp_path):
    writer = RunWriter(tmp_path)
    good = writer.write("law", **LAW)
    faulty = {**good, "outcome": "passed", "seconds": -1, "error_to_bound": None}
    writer.path.write_text("\n".join(map(json.dumps, [good, faulty, {**good, "run_id": "other"}])) + "\n")

    with pytest.raises(RecordError) as caught:
        read_run(tmp_path)

    assert str(caught.value).splitlines() == [
        f"{writer.path}:2: outcome: 'passed' is not one of verified, broken, refused, known_broken, not_run, error",
        f"{writer.path}:2: seconds: -1 is not a finite number >= 0 (write null for what can't be measured)",
        f"{writer.path}:3: run_id: 'other', but this file began as run {writer.run_id!r}",
    ]


def test_of_a_line_of_faults_the_first_are_told_and_no_name_at_length(tmp_path):
    record = RunWriter(tmp_path).write("law", **LAW)
    strange = {"x" * 1_000_000: 1, **{f"secon{number}": 1 for number in range(300_000)}}
    (tmp_path / FILE_NAME).write_text(json.dumps(record | strange) + "\n")
    with pytest.raises(RecordError) as refused:
        read_run(tmp_path)
    told = str(refused.value).splitlines()
    assert len(told) == MOST_FAULTS
    assert max(map(len, told)) < 300


def test_a_newer_schema_is_refused_by_name(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"schema_version": 3, "kind": "vibe"}\n')

    with pytest.raises(RecordError, match=r":1: schema_version: 3 is newer than 2, .* upgrade kvproof"):
        read_run(tmp_path)


def test_a_trace_is_known_by_name_and_never_by_path(tmp_path):
    with pytest.raises(RecordError, match=r"trace: '/home/me/azure\.csv' is not a bare file name"):
        RunWriter(tmp_path).write("replay", trace="/home/me/azure.csv")


@pytest.mark.parametrize("content", ["", '{"sch'])
def test_a_file_without_a_record_is_refused(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content)

    with pytest.raises(RecordError, match="holds no record"):
        read_run(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no such results file"):
        read_run(tmp_path)


def test_processes_that_follow_each_other_share_one_file(tmp_path):
    script = (
        "import sys; from kvproof_reports.records import RunWriter\n"
        "for i in range(20): RunWriter(sys.argv[1]).write('law', **{**eval(sys.argv[2]), 'test': f'{sys.argv[3]}{i}'})"
    )
    started = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), repr(LAW), name]) for name in "ab"]

    assert [process.wait(60) for process in started] == [0, 0]
    assert len(read_run(tmp_path).latest("law")) == 40


def test_a_packed_file_reads_as_the_one_it_was_made_from(tmp_path):
    writer = RunWriter(tmp_path / "run")
    writer.write("end", exit_code=0, verdict="conforms", counts={}, seconds=1.0)
    plain = read_run(tmp_path / "run")
    (tmp_path / "run" / "results.jsonl.gz").write_bytes(gzip.compress(writer.path.read_bytes()))
    writer.path.unlink()
    assert read_run(tmp_path / "run").records == plain.records


def test_a_packed_file_that_is_cut_short_is_refused_by_name(tmp_path):
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress(b"{}" * 100)[:-9])
    with pytest.raises(RecordError, match=r"results.jsonl.gz: can't be unpacked"):
        read_run(tmp_path)
