"""Many processes send to one MLflow server at once, half of them what another sends as well: counted afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvproof_reports.mlflow_client import connect, quiet
from selftest.cli import test_mlflow_server

NUM_PROCESSES = int(os.environ.get("KVPROOF_CROWD", 16))
SEND = """
import sys
from kvproof_reports import mlflow_sink
import mlflow
print("ready", flush=True)
sys.stdin.readline()
print(mlflow_sink.log_run(*sys.argv[1:]).status)
"""

server = test_mlflow_server.server


@pytest.mark.skipif(not os.environ.get("KVPROOF_NIGHTLY"), reason="a minute for 16 processes: make nightly")
def test_of_many_runs_sent_at_once_each_is_there_once_and_whole(server: str, tmp_path: Path) -> None:
    folders = [test_mlflow_server.write_run(tmp_path / f"run-{number}") for number in range(NUM_PROCESSES // 2)]
    statuses = Counter(sent_at_once([*folders, *folders], server))
    print(f"{NUM_PROCESSES} processes, {len(folders)} runs: {dict(statuses)}")
    assert set(statuses) <= {"logged", "unchanged"}
    for folder in folders:
        client, _, children = test_mlflow_server.sent(server, folder.name)
        assert set(children) == {"paged", "mine"}
        for child in children.values():
            points = client.get_metric_history(child.info.run_id, "allocator_median_ms/append")
            assert [(point.step, point.value) for point in points] == [(16, 2.0), (64, 0.5)]
    assert num_live(server) == 3 * len(folders)


def sent_at_once(folders: list[Path], uri: str) -> list[str]:
    """What became of each, by processes that all begin when the last of them is ready."""
    command = [sys.executable, "-c", SEND]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(folder), uri], **pipes) for folder in folders]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return [process.communicate(timeout=600)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def num_live(uri: str) -> int:
    with quiet():
        client = connect(uri)
        return len(client.search_runs([client.get_experiment_by_name("kvproof").experiment_id], max_results=1000))
