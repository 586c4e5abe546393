"""``kvproof trace`` looks at traces, converts, cuts and makes them up."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvproof_suites import cli
from kvproof_traces import FORMATS, PROFILES, SAMPLES, generate_like, load

SUBCOMMANDS = ("info", "convert", "slice", "generate", "formats")


def trace(*arguments):
    return CliRunner().invoke(cli.main, ["trace", *map(str, arguments)])


def described(*arguments):
    shown = trace("info", *arguments, "--json")
    assert shown.exit_code == cli.CONFORMS, shown.output
    return json.loads(shown.stdout)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_shows_an_example_in_its_help(name):
    assert f"kvproof trace {name}" in trace(name, "--help").output.split("\n", 1)[1]


def test_rows_read_are_rows_kept_and_rows_dropped_by_reason():
    found = described(SAMPLES / "burstgpt_v1.csv", "--skip-bad")
    assert (found["format"], found["rows_read"], found["rows_kept"]) == ("burstgpt", 3, 1)
    assert found["dropped"] == {"failed call": 2}


def test_a_person_reads_the_same_figures():
    lines = dict(line.split("\t") for line in trace("info", SAMPLES / "mooncake.jsonl").stdout.splitlines())
    found = described(SAMPLES / "mooncake.jsonl")
    assert lines["rows read"] == str(found["rows_read"]) == "3"
    assert lines["prompt blocks seen before"] == "42.9 % of 7"
    assert found["sharing"]["share_of_blocks"] == pytest.approx(3 / 7)
    assert lines["hit rate, 100,000 tokens"] == "52.7 %"


def test_capacities_are_those_asked_for():
    found = described(SAMPLES / "mooncake.jsonl", "--capacity=1024", "--capacity=512")
    assert [capacity for capacity, _ in found["sharing"]["hit_rates"]] == [512, 1024]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sharegpt.json", ["--bytes-per-token=4", "--skip-bad"], "lengths are estimated: UTF-8 bytes of the text / 4"),
        ("sharegpt.json", ["--bytes-per-token=4", "--skip-bad"], "no arrival times"),
        ("azure_mm.csv", [], "NumImages is checked and left out"),
    ],
)
def test_what_was_assumed_is_told(name, options, said):
    assert any(said in note for note in described(SAMPLES / name, *options)["notes"])
    assert said in trace("info", SAMPLES / name, *options).stdout


@pytest.mark.parametrize("name", ["azure.csv", "burstgpt_v3.csv", "bailian.jsonl", "vidur.csv", "llmservingsim.jsonl"])
def test_any_format_is_converted_to_the_one_that_carries_everything(tmp_path, name):
    out = tmp_path / "out.jsonl.gz"
    told = trace("convert", SAMPLES / name, out)
    assert told.exit_code == cli.CONFORMS
    assert f"requests to {out}" in told.stderr
    assert load(out, format="native").requests == load(SAMPLES / name).requests


def test_a_dash_prints_the_requests_and_nothing_else():
    shown = trace("convert", SAMPLES / "azure.csv", "-")
    assert [json.loads(line)["input_length"] for line in shown.stdout.splitlines()] == [37, 900, 37]


def test_dropped_rows_are_told_when_a_file_is_converted(tmp_path):
    told = trace("convert", SAMPLES / "burstgpt_v1.csv", tmp_path / "out", "--skip-bad")
    assert "dropped 2: failed call" in told.stderr


def test_a_bad_row_leaves_no_file_behind(tmp_path):
    told = trace("convert", SAMPLES / "azure_dirty.csv", tmp_path / "out")
    assert told.exit_code == cli.USAGE_ERROR
    assert "azure_dirty.csv:3: TIMESTAMP: " in told.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_overwritten_by_force_alone(tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    assert "--force does" in trace("convert", SAMPLES / "azure.csv", out).stderr
    assert out.read_text() == "mine"
    assert trace("convert", SAMPLES / "azure.csv", out, "--force").exit_code == cli.CONFORMS
    assert load(out).rows_read == 3


@pytest.mark.parametrize(
    ("options", "ids", "first_ms"),
    [
        (["--rows=1:3"], ["r1", "r2"], 0),
        (["--rows=62:"], ["r62", "r63"], 0),
        (["--seconds=:0.3"], ["r0", "r1"], 0),
        (["--sample=64"], [f"r{index}" for index in range(64)], 0),
    ],
)
def test_a_slice_has_the_rows_asked_for_and_begins_at_zero(tmp_path, options, ids, first_ms):
    told = trace("slice", SAMPLES / "native.jsonl", tmp_path / "out", *options)
    assert told.exit_code == cli.CONFORMS, told.output
    requests = load(tmp_path / "out").requests
    assert [request.request_id for request in requests] == ids
    assert requests[0].arrival_ms == first_ms


def test_a_sample_is_drawn_from_the_part_and_is_the_same_for_its_seed():
    def drawn(seed):
        return trace("slice", SAMPLES / "native.jsonl", "-", "--rows=:20", "--sample=5", f"--seed={seed}").stdout

    assert drawn(1) == drawn(1) != drawn(2)
    ids = [int(json.loads(line)["id"][1:]) for line in drawn(1).splitlines()]
    assert len(ids) == 5
    assert ids == sorted(ids)
    assert max(ids) < 20


def test_made_up_traffic_is_what_the_library_makes(tmp_path):
    told = trace("generate", tmp_path / "out.zst", "--like=agent", "--num-requests=20", "--seed=3")
    assert told.exit_code == cli.CONFORMS, told.output
    assert load(tmp_path / "out.zst").requests == tuple(generate_like("agent", 20, seed=3))


def test_the_list_of_traffic_names_the_source_of_its_figures():
    lines = [line.split("\t") for line in trace("generate", "--list").stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == list(PROFILES)
    assert all(line[-1] for line in lines)


def test_the_list_of_formats_is_whole():
    assert [line.split("\t")[0] for line in trace("formats").stdout.splitlines()[1:]] == list(FORMATS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["info", "nowhere.csv"], "nowhere.csv: No such file or directory"),
        (["info", SAMPLES / "azure.csv", "--format=xls"], "kvproof: --format: unknown trace format 'xls'"),
        (["info", SAMPLES / "sharegpt.json"], "--bytes-per-token"),
        (["info", SAMPLES / "azure.csv", "--bytes-per-token=0"], "kvproof: --bytes-per-token: 0.0"),
        (["info", SAMPLES / "flashinfer_trace_workload.jsonl"], "lengths lie in made_up.safetensors"),
        (["info", SAMPLES / "flashinfer_trace_workload.jsonl", "--skip-bad"], "holds no request that could be kept"),
        (["convert", SAMPLES / "azure.csv", "nowhere/out"], "nowhere/out: No such file or directory"),
        (["slice", SAMPLES / "azure.csv", "-"], "give --rows, --seconds or --sample"),
        (["slice", SAMPLES / "azure.csv", "-", "--rows=1:2", "--seconds=1:2"], "give one of them"),
        (["slice", SAMPLES / "azure.csv", "-", "--rows=1:2.5"], "--rows: '1:2.5' is no range"),
        (["slice", SAMPLES / "azure.csv", "-", "--rows=2"], "--rows: '2' is no range"),
        (["slice", SAMPLES / "azure.csv", "-", "--rows=2:1"], "kvproof: --rows: 2:1 is no range"),
        (["slice", SAMPLES / "azure.csv", "-", "--seconds=nan:"], "kvproof: --seconds: "),
        (["slice", SAMPLES / "azure.csv", "-", "--rows=7:"], "has no request there"),
        (["generate", "-", "--like=chat"], "kvproof: --like: unknown traffic 'chat'; known are sharegpt"),
        (["generate", "-"], "give OUT and --like"),
        (["generate", "-", "--like=alpaca", "--rate=0"], "requests_per_second: 0 is not in"),
    ],
)
def test_a_mistake_is_named_and_exits_with_4(arguments, said):
    told = trace(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert told.stderr.count("\n") <= 2
    assert "Traceback" not in told.stderr


def test_looking_at_a_trace_does_not_wait_for_torch():
    path = SAMPLES / "mooncake.jsonl"
    probe = (
        f"import sys; sys.argv = ['kvproof', 'trace', 'info', {str(path)!r}]\n"
        "from kvproof_suites.cli import main\n"
        "try: main()\nfinally: print({'torch', 'kvproof_impls', 'zstandard'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("set()\n")
