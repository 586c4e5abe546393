"""A run that was sent to MLflow comes back as it was; what is no run of ours is named."""

import pytest

from kvproof_reports.mlflow_sink import log_run
from kvproof_reports.mlflow_source import MlflowRunError, mlflow_run_id, read_mlflow_run
from kvproof_reports.records import RecordError, read_run
from kvproof_reports.verdict import subjects

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def sent(build, database):
    run = build("sent")
    run.everything()
    summary = log_run(run.writer.folder, tracking_uri=database)
    return run.writer.folder, database, summary.parent_run_id, mlflow.MlflowClient(tracking_uri=database)


def test_a_run_comes_back_with_all_its_records(sent):
    folder, uri, run_id, _ = sent
    found = read_mlflow_run(run_id, uri)
    assert found.records == read_run(folder).records
    assert run_id in str(found.path)


def test_the_run_of_one_implementation_gives_its_records_alone(sent):
    folder, uri, _, client = sent
    (child,) = client.search_runs(["1"], filter_string="tags.`kvproof.implementation` = 'paged'")
    found = read_mlflow_run(child.info.run_id, uri)
    assert [subject.name for subject in subjects([found])] == ["paged"]
    whole = next(subject for subject in subjects([read_run(folder)]) if subject.name == "paged")
    assert subjects([found])[0].benchmarks == whole.benchmarks


def test_a_run_of_somebody_else_is_refused_by_its_tag(sent):
    _, uri, _, client = sent
    other = client.create_run("0").info.run_id
    with pytest.raises(MlflowRunError, match=rf"{other} has no tag kvproof.run_id, .* `kvproof log` has sent"):
        read_mlflow_run(other, uri)


def test_a_run_without_its_results_says_how_to_send_them(sent):
    _, uri, _, client = sent
    bare = client.create_run("0", tags={"kvproof.run_id": "bare"}).info.run_id
    with pytest.raises(MlflowRunError, match=r"has no results.jsonl .*; send the run again with `kvproof log`"):
        read_mlflow_run(bare, uri)


def test_an_unknown_run_is_named(sent):
    with pytest.raises(MlflowRunError, match=f"run {'0' * 32}: "):
        read_mlflow_run("0" * 32, sent[1])


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(MlflowRunError, match="no such database"):
        read_mlflow_run("0" * 32, f"sqlite:///{tmp_path}/none.db")
    assert not list(tmp_path.iterdir())


def test_a_faulty_file_is_told_under_the_name_that_was_given(sent, tmp_path):
    _, uri, run_id, client = sent
    (tmp_path / "results.jsonl").write_text('{"schema_version": 2, "kind": "vibe"}\n')
    client.log_artifact(run_id, str(tmp_path / "results.jsonl"))
    with pytest.raises(RecordError, match=rf"^MLflow run {run_id}/results.jsonl:1: kind: 'vibe'"):
        read_mlflow_run(run_id, uri)


@pytest.mark.parametrize(
    ("name", "run_id"),
    [("0" * 32, "0" * 32), ("runs:/" + "a" * 32, "a" * 32), ("results/today", None), ("a" * 31, None)],
)
def test_an_id_is_32_hexadecimal_digits(name, run_id):
    assert mlflow_run_id(name) == run_id
