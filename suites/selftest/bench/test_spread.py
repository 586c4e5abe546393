"""A sweep over a Ray cluster: two nodes of one core each, both on this machine and of this process; none is used by
anybody else, and nothing is left running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kvproof_reports.records import RunWriter, read_run
from kvproof_suites import cli
from kvproof_suites.bench import ray_cluster
from kvproof_suites.bench.cells import HostCell
from kvproof_suites.bench.errand import Errand, elsewhere
from kvproof_suites.bench.resuming import row_key, whole_contests
from kvproof_suites.environment import describe
from selftest.outside_of_xdist import outside_of_xdist  # noqa: F401  of every test here
from selftest.test_plugin import RIGHT

# Ray takes 127.0.0.1 for another name of the machine's address in its network; 127.0.0.2 stays what it is.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "include_dashboard": False, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(**node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

SMALL = """
seconds = 0.02
[[attention]]
points = ["2q1s40"]
heads = ["4/2"]
head_dims = [16]
block_sizes = [8, 16]
tables = ["dense", "shuffled"]
[[copy]]
points = ["4q1"]
heads = ["4/2"]
head_dims = [16]
"""

MINE = (
    RIGHT
    + """
import os, signal
from pathlib import Path
from kvproof_impls import from_function

def deadly(query, key_pool, *tensors, scale):
    deaths = Path(__file__).with_name("deaths")
    left = int(deaths.read_text()) if key_pool.shape[1] == 8 and deaths.exists() else 0
    if left:
        deaths.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return attend(query, key_pool, *tensors, scale=scale)

kernel = from_function(deadly)
"""
)

MEETING = """
import json, sys, time
from pathlib import Path
from kvproof_suites.bench.ray_cluster import spread

def meet(folder, calls):
    (name,) = calls
    if name == "raises":
        raise ValueError("out of paper")
    Path(folder, name).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.05)
    return {}

print(json.dumps(list(spread(sys.argv[1], meet, sys.argv[2], [["one"], ["other"], ["raises"]], num_cpus=1))))
"""

IDENTITY = ("implementation", "group", "point", "block_size", "table", "cache", "mode", "timed", "verified", "test")


@pytest.fixture(scope="module")
def address():
    pytest.importorskip("ray", reason="not run here: pip install 'kvproof[ray]'")
    command = [sys.executable, "-c", CLUSTER]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as cluster:
        yield cluster.stdout.readline().strip()
        cluster.stdin.close()
        assert cluster.wait(60) == 0


def bench(folder, *arguments, results="run"):
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    law = {"law": "G18", "sentence": "x", "test": "x", "implementation": "torch", "outcome": "verified", "seconds": 0.1}
    RunWriter(folder / "laws").write("law", **law)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "kvproof_suites.bench", "--bench"]
    command += ["--impl=torch,mine:kernel", "--isolate=no", "--profile=small.toml", "--verified-by=laws"]
    command += [f"--results={results}", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def rows(folder):
    return read_run(folder).latest("benchmark")


def identities(folder):
    return sorted(tuple(str(row[name]) for name in IDENTITY) for row in rows(folder))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Rows of a run without a cluster."""
    folder = tmp_path_factory.mktemp("plain")
    ended = bench(folder)
    assert ended.returncode == 0, ended.stdout
    return identities(folder / "run")


@pytest.fixture(scope="module")
def cut_short(address, tmp_path_factory):
    """A run whose contest of block size 8 loses every process that takes it on, and one more of the run after it."""
    folder = tmp_path_factory.mktemp("spread")
    (folder / "deaths").write_text("4")
    return folder, bench(folder, f"--ray={address}"), rows(folder / "run")


@pytest.fixture(scope="module")
def resumed(address, cut_short):
    folder, _, _ = cut_short
    return bench(folder, f"--ray={address}", "--resume")


def test_what_is_lost_three_times_is_told_and_costs_nothing_else(cut_short):
    _, ended, found = cut_short
    assert ended.returncode == cli.INTERNAL_ERROR, ended.stdout + ended.stderr
    assert [ended.stdout.count(f"block size 8: try {number} of 3: ") for number in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert "1 of 3 contests could not be timed" in ended.stdout
    assert {(row["group"], row["block_size"]) for row in found} == {("decode", 16), ("copy", 16)}


def test_cells_of_a_lost_worker_run_again(cut_short, resumed):
    folder, _, _ = cut_short
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert resumed.stdout.count("block size 8: try 1 of 3: ") == 1
    assert (folder / "deaths").read_text() == "0"


def test_rows_are_those_of_a_run_without_a_cluster(plain, cut_short, resumed):
    folder, _, _ = cut_short
    assert identities(folder / "run") == plain


def test_a_resumed_run_does_the_rest_only(cut_short, resumed):
    folder, _, before = cut_short
    assert [row for row in rows(folder / "run") if row["block_size"] == 16] == before


def test_a_contest_is_of_one_machine(cut_short, resumed):
    folder, _, _ = cut_short
    machines = {}
    for row in rows(folder / "run"):
        machines.setdefault((row["group"], row["block_size"]), set()).add(row["machine"])
    assert [len(found) for found in machines.values()] == [1, 1, 1]


def test_calls_run_side_by_side_on_machines_and_one_that_raises_is_told(address, tmp_path):
    command = [sys.executable, "-c", MEETING, address, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert len({answer["node"] for _, _, answer in answers if "node" in answer}) == 2
    assert [[number, answer] for place, number, answer in answers if place == 2] == [
        [number, {"failed": "ValueError: out of paper"}] for number in (1, 2, 3)
    ]


def sweep(folder, *arguments):
    options = ["sweep", "--impl=torch", f"--results={folder / 'run'}", "--device=cpu", *arguments]
    return CliRunner().invoke(cli.main, options)


@pytest.fixture
def silent():
    """A port that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_port_that_is_no_cluster_is_told_in_time(silent, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="not run here: pip install 'kvproof[ray]'")
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_ANSWER", 3)
    started = time.monotonic()
    told = sweep(tmp_path, f"--ray={silent}")
    assert time.monotonic() - started < 15
    assert told.exit_code == cli.USAGE_ERROR
    assert f"no Ray cluster answered at {silent} in 3 s" in told.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "device", "said"),
    [
        ("127.0.0.1:1", "cpu", "--ray: 127.0.0.1:1: Connection refused"),
        ("", "cpu", "give the address of a cluster that runs"),
        ("local", "cpu", "give the address of a cluster that runs"),
        ("auto", "cuda:1", "leave the number out of --device=cuda:1"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(address, device, said, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "need", lambda module, extra: None)
    told = sweep(tmp_path, f"--ray={address}", f"--device={device}")
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert not list(tmp_path.iterdir())


def test_without_ray_the_line_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    told = sweep(tmp_path, "--ray=auto")
    assert told.exit_code == cli.USAGE_ERROR
    assert "--ray needs ray: pip install 'kvproof[ray]'" in told.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("machines", "device", "needed"),
    [
        ([{"CPU": 0.0}, {"CPU": 16.0}, {"CPU": 16.0}], "cpu", {"num_cpus": 16}),
        ([{"CPU": 8.0}, {"CPU": 64.0, "GPU": 4.0}], "cuda", {"num_gpus": 1, "num_cpus": 16}),
        ([{"CPU": 2.0, "GPU": 4.0}], "cuda", {"num_gpus": 1, "num_cpus": 1}),
    ],
)
def test_a_contest_has_a_machine_or_a_gpu_to_itself(machines, device, needed, monkeypatch):
    monkeypatch.setattr(ray_cluster, "need", lambda module, extra: None)
    monkeypatch.setattr(ray_cluster, "_machines", lambda address: machines)
    assert ray_cluster.resources_of_call("auto", device) == needed


def test_a_cluster_without_the_device_is_told(monkeypatch):
    monkeypatch.setattr(ray_cluster, "need", lambda module, extra: None)
    monkeypatch.setattr(ray_cluster, "_machines", lambda address: [{"CPU": 8.0}])
    with pytest.raises(ray_cluster.ClusterError, match="no machine of auto has a cuda device"):
        ray_cluster.resources_of_call("auto", "cuda")


def test_rows_of_another_kind_of_machine_are_not_taken():
    here = describe("cpu")
    assert elsewhere(Errand((), {}, "cpu", {**here, "git_commit": "another"})) is None
    told = elsewhere(Errand((), {}, "cpu", {**here, "cpu": "Babbage 1"}))
    assert told == f"another kind of machine: cpu {here['cpu']}, and Babbage 1 where the laws were judged"


def test_a_contest_that_lacks_a_row_is_timed_again_as_a_whole():
    def item(name, size):
        params = {"make_allocator": name, "cell": HostCell("allocator", "fork", size, 64)}
        return SimpleNamespace(callspec=SimpleNamespace(params=params))

    items = [item(name, size) for size in (16, 32) for name in ("paged", "textbook")]
    done = {row_key(one) for one in items[:3]}
    assert whole_contests(items, done) == {row_key(one) for one in items[:2]}
