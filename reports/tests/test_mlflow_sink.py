"""MLflow as a sink: what arrives, that nothing doubles, and that it can't hurt a run."""

import logging
import os
import socket
import sys
import time

import pytest

from kvproof_reports.extras import MissingExtra
from kvproof_reports.metrics import metric_name, points
from kvproof_reports.mlflow_sink import _ENVIRONMENT, log_run
from kvproof_reports.records import read_run
from kvproof_reports.verdict import subjects


def curve(run, implementation, table="identity"):
    (subject,) = [subject for subject in subjects([read_run(run.writer.folder)]) if subject.name == implementation]
    return [(p.name, p.step, p.value) for p in points(subject) if p.name.startswith("decode_tokens_per_second")]


def test_throughput_has_the_block_size_as_its_step(build):
    run = build("a")
    run.decode(block_size=16, median_ms=2.0)
    run.decode(block_size=32, median_ms=1.0)

    assert curve(run, "torch") == [
        ("decode_tokens_per_second/identity", 16, 2000.0),
        ("decode_tokens_per_second/identity", 32, 4000.0),
    ]


def test_two_shapes_of_one_run_are_two_metrics(build):
    run = build("a")
    run.decode(batch=4)
    run.decode(batch=8)

    assert [name for name, _, _ in curve(run, "torch")] == [
        "decode_tokens_per_second/identity/4q1s1024_h32-8_d128_float32_cpu",
        "decode_tokens_per_second/identity/8q1s1024_h32-8_d128_float32_cpu",
    ]


def test_rows_without_heads_dims_or_type_have_a_name_too(build):
    run = build("a")
    for point in ("4q1s1k", "8q1s1k"):
        bare = dict.fromkeys(("num_q_heads", "num_kv_heads", "head_dim", "dtype", "context_len", "batch"))
        run.decode(group="step_tensors", point=point, **bare)

    (subject,) = subjects([read_run(run.writer.folder)])

    assert {p.name for p in points(subject) if p.name.startswith("step_tensors_median_ms")} == {
        "step_tensors_median_ms/identity/4q1s1k_cpu",
        "step_tensors_median_ms/identity/8q1s1k_cpu",
    }


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("p99[us]", "p99_us_"),
        ("replay_waste/../x", "replay_waste/_/x"),
        ("é|ü", "___"),
        ("a/" + "b" * 300, "a/" + "b" * 248),
    ],
)
def test_a_metric_name_holds_only_what_mlflow_allows(text, allowed):
    assert metric_name(text) == allowed


def test_a_missing_package_is_named_with_the_line_that_installs_it(build, monkeypatch):
    folder = build("a").everything()
    monkeypatch.setitem(sys.modules, "mlflow", None)

    with pytest.raises(MissingExtra, match=r"pip install 'kvproof\[mlflow\]'"):
        log_run(folder, "sqlite:///unused.db")


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path / 'db' / 'mlflow.db'}"


def everything_in(uri):
    """{implementation: number of metric points}, and the parents, of all live runs."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("kvproof")
    runs = client.search_runs([experiment.experiment_id])
    children = {run.data.tags["kvproof.implementation"]: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(children) + len(parents) == len(runs)
    histories = {
        name: {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        for name, run in children.items()
    }
    return client, parents, children, histories


def test_a_run_arrives_once_however_often_it_is_sent(build, tmp_path, database):
    (tmp_path / "db").mkdir()
    run = build('it\'s a "run"')
    folder = run.everything()
    (folder / "report.md").write_text("short")

    first, again = log_run(folder, database), log_run(folder, database)

    assert (first.status, again.status) == ("logged", "unchanged"), (first.message, again.message)
    assert first.logged == again.unchanged == ("torch", "triton", "paged", "contiguous")
    client, (parent,), children, histories = everything_in(database)
    assert parent.data.tags["kvproof.run_id"] == 'it\'s a "run"'
    assert [(p.step, p.value) for p in histories["torch"]["decode_tokens_per_second/identity"]] == [
        (size, pytest.approx(4 / (2 + 16 / size) * 1e3)) for size in (8, 16, 32, 64, 128, 256)
    ]
    assert histories["triton"]["laws_broken"][0].value == 1
    assert histories["contiguous"]["replay_waste/sample.jsonl"][0].value == 0.71
    assert children["torch"].data.params["git_commit"] == "0123abc"
    assert sorted(file.path for file in client.list_artifacts(parent.info.run_id)) == ["report.md", "results.jsonl"]
    assert list((tmp_path / "db" / "mlartifacts").rglob("results.jsonl"))

    # The run grows, and one child looks as if its sending had been cut off: these two are replaced, the others stay.
    run.decode("torch", block_size=16, median_ms=1.0)
    client.delete_tag(children["triton"].info.run_id, "kvproof.digest")

    grown = log_run(folder, database)

    assert (grown.logged, grown.unchanged) == (("torch", "triton"), ("paged", "contiguous"))
    _, (same_parent,), _, histories = everything_in(database)
    assert same_parent.info.run_id == parent.info.run_id == grown.parent_run_id
    by_step = [(p.step, p.value) for p in histories["torch"]["decode_tokens_per_second/identity"]]
    assert len(by_step) == 6
    assert len(histories["triton"]["laws_broken"]) == 1
    assert (16, 4000.0) in by_step


def test_an_unreachable_server_costs_seconds_and_one_warning(build, caplog):
    folder = build("a").everything()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    started = time.monotonic()

    with caplog.at_level(logging.WARNING, logger="kvproof"):
        summary = log_run(folder, uri)

    assert summary.status == "failed"
    assert uri in summary.message
    assert time.monotonic() - started < 30
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["kvproof"]
    assert {name: os.environ.get(name) for name in _ENVIRONMENT} == before
    assert logging.root.manager.disable == logging.NOTSET
