"""``kvproof report`` and ``kvproof log`` turn run folders into what people read."""

import pytest
from click.testing import CliRunner

from kvproof_reports import mlflow_sink
from kvproof_reports.extras import MissingExtra
from kvproof_reports.records import RunWriter
from kvproof_suites import cli
from kvproof_suites.laws import LAWS


def kvproof(*arguments):
    return CliRunner().invoke(cli.main, [*map(str, arguments)])


@pytest.fixture
def run_folder(tmp_path):
    """A run in which ``mine`` keeps one law and breaks another."""
    writer = RunWriter(tmp_path / "monday")
    for law, outcome, reason in [("G18", "verified", None), ("G19", "broken", "block 3 was counted twice")]:
        about = {"law": law, "sentence": LAWS[law].sentence, "test": f"test_{law}", "implementation": "mine"}
        writer.write("law", **about, outcome=outcome, reason=reason, seconds=0.5)
    return tmp_path / "monday"


def test_report_writes_both_files_beside_the_records(run_folder):
    shown = kvproof("report", run_folder)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.split() == [str(run_folder / "report.md"), str(run_folder / "report.html")]
    for name in ("report.md", "report.html"):
        assert "block 3 was counted twice" in (run_folder / name).read_text()
    assert "Prevents: " in (run_folder / "report.html").read_text()


def test_report_takes_a_folder_for_several_runs(run_folder, tmp_path):
    other = RunWriter(tmp_path / "tuesday")
    other.write("law", law="G18", sentence="s", test="t", implementation="theirs", outcome="verified", seconds=1.0)
    assert kvproof("report", run_folder, tmp_path / "tuesday", "--output", tmp_path / "both").exit_code == 0
    text = (tmp_path / "both" / "report.md").read_text()
    assert "mine" in text
    assert "theirs" in text


def test_without_the_extra_the_other_report_is_written_and_the_line_is_named(run_folder, monkeypatch):
    def missing(runs, path, laws):
        raise MissingExtra("needs jinja2: pip install 'kvproof[report]'")

    monkeypatch.setattr("kvproof_reports.html.write_html", missing)
    shown = kvproof("report", run_folder)
    assert shown.exit_code == 0
    assert shown.stdout.split() == [str(run_folder / "report.md")]
    assert shown.stderr == "report.html left out: needs jinja2: pip install 'kvproof[report]'\n"


def test_log_sends_each_run_to_the_tracking_uri(run_folder, monkeypatch):
    sent = []

    def log_run(folder, tracking_uri):
        sent.append((folder, tracking_uri))
        return mlflow_sink.Summary("logged", tracking_uri, "")

    monkeypatch.setattr(mlflow_sink, "log_run", log_run)
    assert kvproof("log", run_folder, "--uri=sqlite:///elsewhere.db").exit_code == 0
    assert sent == [(run_folder, "sqlite:///elsewhere.db")]


def test_a_tracking_server_that_fails_exits_with_4(run_folder, monkeypatch):
    monkeypatch.setattr(mlflow_sink, "log_run", lambda folder, tracking_uri: mlflow_sink.Summary("failed", "", ""))
    told = kvproof("log", run_folder)
    assert told.exit_code == cli.USAGE_ERROR
    assert "its records stay on disk" in told.stderr


def test_log_without_mlflow_names_the_line_that_installs_it(run_folder, monkeypatch):
    def missing(folder, tracking_uri):
        raise MissingExtra("needs mlflow: pip install 'kvproof[mlflow]'")

    monkeypatch.setattr(mlflow_sink, "log_run", missing)
    told = kvproof("log", run_folder)
    assert told.exit_code == cli.USAGE_ERROR
    assert "pip install 'kvproof[mlflow]'" in told.stderr


@pytest.mark.parametrize("command", ["report", "log"])
def test_a_folder_without_results_is_named(command, tmp_path):
    told = kvproof(command, tmp_path)
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{tmp_path / 'results.jsonl'}: no such results file" in told.stderr
