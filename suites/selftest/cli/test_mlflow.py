"""MLflow on the command line: where a run goes, and that nothing there can change how the run ends."""

import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvproof_reports import mlflow_sink
from kvproof_reports.extras import MissingExtra
from kvproof_reports.records import RecordError, RunWriter, read_run
from kvproof_suites import cli, options
from kvproof_suites.run import sent_to_mlflow

KERNEL = """
import torch
from kvproof_impls import from_function
zeros = from_function(lambda query, *tensors, scale: torch.zeros_like(query))
"""
TEAM = "http://user:secret@127.0.0.1:1"


@pytest.fixture
def asked(monkeypatch):
    """The tracking URIs that were asked for; none of them works."""
    found = []

    def log_run(folder, tracking_uri):
        found.append(tracking_uri)
        return mlflow_sink.Summary("failed", "", "")

    monkeypatch.setattr(mlflow_sink, "log_run", log_run)
    return found


@pytest.mark.parametrize(
    ("arguments", "environment", "uri"),
    [
        ([], {}, "sqlite:///mlflow.db"),
        ([], {"MLFLOW_TRACKING_URI": ""}, "sqlite:///mlflow.db"),
        ([], {"MLFLOW_TRACKING_URI": TEAM}, TEAM),
        (["--uri=sqlite:///mine.db"], {"MLFLOW_TRACKING_URI": TEAM}, "sqlite:///mine.db"),
    ],
)
def test_log_sends_to_the_variable_unless_told_otherwise(tmp_path, asked, arguments, environment, uri):
    (tmp_path / "results.jsonl").write_bytes(a_law(tmp_path / "run"))
    env = {"MLFLOW_TRACKING_URI": None, **environment}
    told = CliRunner().invoke(cli.main, ["log", str(tmp_path), *arguments], env=env)
    assert asked == [uri]
    assert "secret" not in told.stderr


def a_law(folder):
    law = {"law": "G18", "sentence": "s", "test": "t", "implementation": "mine", "outcome": "verified", "seconds": 1.0}
    RunWriter(folder, run_id="run").write("law", **law)
    return (folder / "results.jsonl").read_bytes()


@pytest.mark.parametrize(("arguments", "uri"), [([], TEAM), (["--mlflow=sqlite:///mine.db"], "sqlite:///mine.db")])
def test_a_run_goes_to_the_variable_unless_told_otherwise(monkeypatch, tmp_path, arguments, uri):
    published = []
    monkeypatch.setattr("kvproof_suites.cli.run.publish", lambda folder, uri: published.append(uri))
    monkeypatch.setattr("kvproof_suites.cli.run._replay", lambda trace, folder: None)
    monkeypatch.setattr("kvproof_suites.cli.judging.Judge.laws", lambda judge, impl: cli.CONFORMS)
    words = ["run", "--impl=reference", "--no-bench", f"--results={tmp_path / 'a'}", *arguments]
    ended = CliRunner().invoke(cli.main, words, env={"MLFLOW_TRACKING_URI": TEAM})
    assert ended.exit_code == cli.CONFORMS, ended.output
    assert published == [uri]


def test_the_plugin_leaves_the_choice_to_the_variable_where_no_uri_is_given():
    assert options.OPTIONS["mlflow"]["const"] == ""
    assert options.OPTIONS["mlflow"]["default"] is None


@pytest.fixture
def silent_server():
    """Takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_that_never_answers_costs_a_run_one_line_and_not_its_exit_code(tmp_path, silent_server):
    (tmp_path / "mine.py").write_text(KERNEL)
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites", "--impl=mine:zeros", "-q"]
    command += ["-k", "causal_limit", "-p", "no:cacheprovider", "--results=sent", f"--mlflow={silent_server}"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    assert told.returncode == cli.LAW_BROKEN, told.stdout
    assert [line for line in (told.stdout + told.stderr).splitlines() if silent_server in line] == [
        "kvproof: MLflow: results stay on disk, send them later by `kvproof log sent`: "
        f"{silent_server}: Unreachable: no answer within 4 s"
    ]
    assert read_run(tmp_path / "sent").latest("end")


@pytest.mark.parametrize("error", [MissingExtra("needs mlflow: pip install 'kvproof[mlflow]'"), RecordError("torn")])
def test_what_keeps_a_run_out_of_mlflow_is_told_and_goes_no_further(monkeypatch, error):
    def fails(folder, tracking_uri):
        raise error

    monkeypatch.setattr(mlflow_sink, "log_run", fails)
    assert sent_to_mlflow("anywhere", "") == f"left out: {error}"
