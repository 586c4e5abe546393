"""MLflow as a sink: what arrives, that nothing doubles, and that it can't hurt a run."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvproof_reports.extras import MissingExtra
from kvproof_reports.metrics import metric_name, points
from kvproof_reports.mlflow_client import Unreachable, connect, quiet
from kvproof_reports.mlflow_sink import _experiment, log_run
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


def test_measured_figures_have_six_digits_and_counts_have_all(build):
    run = build("a")
    run.decode(median_ms=1 / 3, tax=0.08)
    run.replay("torch", num_finished=123456789)

    (found,) = [one for one in subjects([read_run(run.writer.folder)]) if one.name == "torch"]
    values = {point.name: point.value for point in points(found)}

    assert values["decode_median_ms/identity"] == 0.333333
    assert values["decode_tax/identity"] == 0.08
    assert values["replay_num_finished/sample.jsonl"] == 123456789


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


def live_runs(uri):
    with quiet():
        client = connect(uri)
        client.search_experiments()
    experiment = client.get_experiment_by_name("kvproof").experiment_id
    return client, experiment, client.search_runs([experiment])


def everything_in(uri):
    """A client, the parents, {implementation: child} and {implementation: {metric: history}}, of all live runs."""
    client, _, runs = live_runs(uri)
    children = {run.data.tags["kvproof.implementation"]: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(children) + len(parents) == len(runs)
    histories = {
        name: {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        for name, run in children.items()
    }
    return client, parents, children, histories


def test_a_run_arrives_once_however_often_it_is_sent(build, tmp_path, database):
    run = build('it\'s a "run"')
    folder = run.everything()
    (folder / "report.md").write_text("short")

    first, again = log_run(folder, database), log_run(folder, database)

    assert (first.status, again.status) == ("logged", "unchanged"), (first.message, again.message)
    assert first.logged == again.unchanged == ("torch", "triton", "paged", "contiguous")
    client, (parent,), children, histories = everything_in(database)
    assert parent.data.tags["kvproof.run_id"] == 'it\'s a "run"'
    assert [(p.step, p.value) for p in histories["torch"]["decode_tokens_per_second/identity"]] == [
        (size, pytest.approx(4 / (2 + 16 / size) * 1e3, rel=1e-5)) for size in (8, 16, 32, 64, 128, 256)
    ]
    assert histories["triton"]["laws_broken"][0].value == 1
    assert histories["contiguous"]["replay_waste/sample.jsonl"][0].value == 0.71
    assert children["torch"].data.params["git_commit"] == "0123abc"
    assert sorted(file.path for file in client.list_artifacts(parent.info.run_id)) == ["report.md", "results.jsonl"]
    assert list((tmp_path / "mlartifacts").rglob("results.jsonl"))

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


def test_a_failure_is_one_warning_without_a_password_and_says_how_to_go_on(build, monkeypatch, caplog):
    folder = build("a").everything()

    def refused(uri):
        raise Unreachable(f"{uri}: refused\nand much more")

    monkeypatch.setattr("kvproof_reports.mlflow_sink.connect", refused)
    with caplog.at_level(logging.WARNING):
        summary = log_run(folder, "http://me:secret@team:5000")

    assert (summary.status, summary.tracking_uri) == ("failed", "http://me:***@team:5000")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"results stay on disk, send them later by `kvproof log {folder}`" in warning
    assert "me:***@team:5000: refused" in warning
    assert "secret" not in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("call", "nth"), [("create_run", 2), ("log_batch", 2), ("set_tag", 1), ("delete_run", 1), ("log_artifact", 1)]
)
def test_what_was_cut_off_anywhere_is_whole_after_the_next_sending_and_nothing_is_there_twice(
    build, tmp_path, database, monkeypatch, call, nth
):
    import mlflow

    run = build("a")
    folder = run.everything()
    log_run(folder, database)
    run.decode("torch", block_size=16, median_ms=1.0)
    run.session(seed=8)
    calls = []

    def dies(*arguments, **named):
        calls.append(arguments)
        if len(calls) == nth:
            raise ConnectionResetError("the server is gone")
        return lives(*arguments, **named)

    with monkeypatch.context() as patch:
        lives = getattr(mlflow.MlflowClient, call)
        patch.setattr(mlflow.MlflowClient, call, dies)
        assert log_run(folder, database).status == "failed"

    log_run(folder, database)

    _, (_parent,), children, histories = everything_in(database)
    assert sorted(children) == ["contiguous", "paged", "torch", "triton"]
    assert {child.data.params["seed"] for child in children.values()} == {"8"}
    steps = [(p.step, p.value) for p in histories["torch"]["decode_tokens_per_second/identity"]]
    assert len(steps) == len(dict(steps)) == 6
    assert dict(steps)[16] == 4000.0


def test_doubles_that_two_processes_left_are_put_right(build, database):
    """As after a race: two sessions, and an implementation under each."""
    folder = build("a").everything()
    first = log_run(folder, database).parent_run_id
    client, experiment, _ = live_runs(database)
    twin = client.create_run(experiment, tags=client.get_run(first).data.tags).info.run_id
    for child in client.search_runs([experiment], filter_string=f"tags.`mlflow.parentRunId` = '{first}'"):
        if child.data.tags["kvproof.implementation"] == "paged":
            client.create_run(experiment, tags={**child.data.tags, "mlflow.parentRunId": twin})
        if child.data.tags["kvproof.implementation"] == "torch":
            client.set_tag(child.info.run_id, "mlflow.parentRunId", twin)

    assert log_run(folder, database).status == "unchanged"

    _, (parent,), children, _ = everything_in(database)
    assert parent.info.run_id == first
    assert {child.data.tags["mlflow.parentRunId"] for child in children.values()} == {first}
    assert len(children) == 4


def test_two_processes_may_send_to_one_new_file_at_once_the_same_run_as_well(build, tmp_path):
    folder, uri = build("a").everything(), f"sqlite:///{tmp_path}/new.db"
    send = "import sys; from kvproof_reports.mlflow_sink import log_run; print(log_run(*sys.argv[1:]).status)"
    command = [sys.executable, "-c", send, str(folder), uri]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ended = sorted(process.communicate(timeout=120)[0].strip() for process in both)

    assert ended == ["logged", "unchanged"]
    assert len(live_runs(uri)[2]) == 5


def test_an_experiment_that_another_process_made_meanwhile_is_taken():
    class Server:
        found = None

        def get_experiment_by_name(self, name):
            return self.found

        def create_experiment(self, *arguments):
            self.found = SimpleNamespace(experiment_id="7")
            raise ValueError("Experiment(name=kvproof) already exists")

    assert _experiment(Server(), "http://team:5000") == "7"
