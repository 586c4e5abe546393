"""A real ``mlflow server``, with SQLite behind it: what it is sent, what it gives back, and what outlives its death."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress

import pytest
from click.testing import CliRunner

from kvproof_reports.mlflow_client import connect, quiet
from kvproof_reports.mlflow_sink import log_run
from kvproof_reports.records import RunWriter
from kvproof_reports.samples import sample_fields
from kvproof_suites import cli
from kvproof_suites.environment import describe

pytestmark = pytest.mark.xdist_group("mlflow server")

STEADY = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97, 2.0, 2.0]
STARTING_SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its URI."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
    command += [f"--backend-store-uri=sqlite:///{folder}/server.db", f"--artifacts-destination={folder}/artefacts"]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # three processes that nothing here needs
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        uri = f"http://127.0.0.1:{port}"
        wait_for(uri, process, folder / "server.log")
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # asked to end, it takes longer than the tests
        process.wait(timeout=20)


def wait_for(uri, process, log):
    for _ in range(2 * STARTING_SECONDS):
        assert process.poll() is None, log.read_text()
        try:
            return urllib.request.urlopen(f"{uri}/health", timeout=5).close()
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text())


def write_run(folder, factor=1.0):
    """Two implementations, two block sizes; a report and JUnit beside the records."""
    writer = RunWriter(folder)
    entries = [{"name": "paged", "version": "0.1.0"}, {"name": "mine"}]
    environment = {**describe("cpu"), "gpu": "H100", "driver": "570.86", "git_commit": "0123abc", "triton": "3.8.0"}
    about = {"tier": "smoke", "seed": 7, "device": "cpu", "command": ["pytest"], "environment": environment}
    writer.write("session", implementations=entries, **about)
    law = {"law": "A1", "sentence": "s", "outcome": "verified", "seconds": 0.1}
    for name in ("paged", "mine"):
        writer.write("law", **law, test=f"kvproof_suites/allocator/test_machine.py::test[{name}]", implementation=name)
        for block_size in (16, 64):
            timed = sample_fields([factor * sample * 16 / block_size for sample in STEADY])
            workload = {"group": "allocator", "operation": "append", "block_size": block_size, "device": "cpu"}
            writer.write("benchmark", **workload, implementation=name, timed=True, verified=True, **timed)
    writer.write("end", exit_code=0, verdict="conforms", counts={"verified": 2}, seconds=1.0)
    for name in ("report.html", "report.md", "junit.xml"):
        (folder / name).write_text(name)
    return folder


def kvproof(*words, uri):
    return CliRunner().invoke(cli.main, [*map(str, words)], env={"MLFLOW_TRACKING_URI": uri, "GITHUB_STEP_SUMMARY": ""})


def sent(uri, run_id):
    """A client, the session, and {implementation: its run}."""
    with quiet():
        client = connect(uri)
        experiment = client.get_experiment_by_name("kvproof").experiment_id
        runs = client.search_runs([experiment], filter_string=f"tags.`kvproof.run_id` = '{run_id}'")
    children = [run for run in runs if run.data.tags["kvproof.kind"] == "implementation"]
    (session,) = [run for run in runs if run not in children]
    by_name = {run.data.tags["kvproof.implementation"]: run for run in children}
    assert len(by_name) == len(children)
    return client, session, by_name


def test_what_is_logged_can_be_read_back_and_is_there_once(server, tmp_path):
    folder = write_run(tmp_path / "monday")
    for _ in range(2):
        told = kvproof("log", folder, uri=server)
        assert (told.exit_code, told.output) == (0, f"{folder} is in {server}\n"), told.output

    client, session, children = sent(server, "monday")
    assert set(children) == {"paged", "mine"}
    child = children["paged"]
    assert child.info.run_name == "paged @ monday"
    history = client.get_metric_history(child.info.run_id, "allocator_median_ms/append")
    assert [(point.step, point.value) for point in history] == [(16, 2.0), (64, 0.5)]
    known = {"git_commit", "gpu", "driver", "torch", "triton", "kvproof", "spec", "seed", "implementation_version"}
    assert known <= child.data.params.keys()
    assert child.data.params["seed"] == "7"
    assert re.fullmatch(r"\d+ laws, [0-9a-f]{8}", child.data.params["spec"])
    assert session.data.tags["kvproof.verdict"] == "conforms"
    assert session.data.tags["kvproof.driver"] == "570.86"
    assert session.data.tags["mlflow.source.git.commit"] == "0123abc"
    artefacts = {found.path for found in client.list_artifacts(session.info.run_id)}
    assert artefacts == {"report.html", "report.md", "junit.xml", "results.jsonl"}


def test_runs_there_are_compared_and_gated_by_their_ids(server, tmp_path):
    before = log_run(write_run(tmp_path / "before"), server).parent_run_id
    slower = write_run(tmp_path / "slower", factor=1.1)

    compared = kvproof("compare", before, slower, uri=server)
    assert [line.split("\t")[-1] for line in compared.output.splitlines()[1:]] == ["slower"] * 4, compared.output
    assert kvproof("gate", "--baseline", before, slower, uri=server).exit_code == cli.LAW_BROKEN
    same = kvproof("gate", "--baseline", before, write_run(tmp_path / "same"), uri=server)
    assert same.exit_code == cli.CONFORMS, same.output


@pytest.mark.parametrize("command", [["compare"], ["gate", "--baseline"]])
def test_a_run_of_somebody_else_is_told_apart(server, tmp_path, command):
    with quiet():
        other = connect(server).create_run("0").info.run_id
    told = kvproof(*command, other, write_run(tmp_path / "mine"), uri=server)
    assert told.exit_code == cli.USAGE_ERROR
    assert f"run {other} has no tag kvproof.run_id, so kvproof did not make it" in told.stderr


@contextmanager
def dying_server(uri, num_pieces):
    """A URI in front of a server that is gone after so many pieces of requests, one or two a request."""
    budget = threading.Semaphore(num_pieces)
    with ExitStack() as sockets:

        def kept(opened):
            sockets.enter_context(opened)
            sockets.callback(shut, opened)
            return opened

        def forward(source, target, is_counted):
            while (data := source.recv(1 << 20)) and (not is_counted or budget.acquire(blocking=False)):
                target.sendall(data)
            shut(source, target)

        def serve():
            while True:
                front = kept(listening.accept()[0])
                behind = kept(socket.create_connection(("127.0.0.1", int(uri.rpartition(":")[2]))))
                start(forward, front, behind, True)
                start(forward, behind, front, False)

        listening = kept(socket.create_server(("127.0.0.1", 0)))
        start(serve)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def shut(*ends):
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def start(action, *arguments):
    """In a thread; one of a server that is gone has nothing to say."""

    def run():
        with suppress(OSError):
            action(*arguments)

    threading.Thread(target=run, daemon=True).start()


@pytest.mark.parametrize("num_pieces", [4, 9, 14])
def test_nothing_is_lost_when_the_server_dies_in_the_middle(server, tmp_path, num_pieces):
    folder = write_run(tmp_path / f"cut-{num_pieces}")
    with dying_server(server, num_pieces) as dying:
        first = kvproof("log", folder, uri=dying)
    assert first.exit_code == cli.USAGE_ERROR, first.output
    assert (folder / "results.jsonl").is_file()

    assert kvproof("log", folder, uri=server).exit_code == cli.CONFORMS

    client, session, children = sent(server, folder.name)
    assert set(children) == {"paged", "mine"}
    for child in children.values():
        points = client.get_metric_history(child.info.run_id, "allocator_median_ms/append")
        assert [(point.step, point.value) for point in points] == [(16, 2.0), (64, 0.5)]
        assert child.data.tags["mlflow.parentRunId"] == session.info.run_id
        assert child.info.status == "FINISHED"
    assert len(client.list_artifacts(session.info.run_id)) == 4
