"""A worker a GPU: which device a run takes, with CUDA devices made up, since a machine with several is rare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvproof_reports.records import read_run
from kvproof_suites import checks
from kvproof_suites.repro.script import Failure, render

MADE_UP = """
import torch
made_current = []
allocate = torch.empty
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.get_device_name = lambda device: "made up"
torch.cuda.set_device = made_current.append
torch.empty = lambda *size, device=None, **more: allocate(*size, device="cpu", **more)
def pytest_sessionstart(session):
    worker = getattr(session.config, "workerinput", {}).get("workerid", "controller")
    open(f"{worker}.device", "w").write(" ".join(made_current))
"""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three made-up devices; the list grows by each that is made the current one."""
    current: list[str] = []
    allocate = torch.empty

    def empty(size: int, device: str) -> torch.Tensor:
        if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= 3:
            raise RuntimeError("CUDA error: invalid device ordinal\nand much more")
        return allocate(size)

    def make_current(device: str) -> None:
        if torch.device(device).index is None:
            raise ValueError(f"Expected a torch.device with a specified index, but got: {device}")  # as torch does
        current.append(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", make_current)
    monkeypatch.setattr(torch, "empty", empty)
    return current


@pytest.mark.parametrize(
    ("asked", "worker", "device"),
    [
        (None, None, "cuda"),
        ("cuda", None, "cuda"),
        ("cuda", "gw0", "cuda:0"),
        (None, "gw2", "cuda:2"),
        ("cuda", "gw4", "cuda:1"),
        ("cuda", "gw12", "cuda:0"),
        ("cuda:1", "gw2", "cuda:1"),
        ("cpu", "gw2", "cpu"),
    ],
)
def test_a_worker_takes_the_next_device_unless_one_is_named(
    gpus: list[str], asked: str | None, worker: str | None, device: str
) -> None:
    assert checks.choose_device(asked, worker) == device


@pytest.mark.parametrize(
    ("asked", "worker", "made_current"),
    [("cuda:2", None, ["cuda:2"]), ("cuda", "gw1", ["cuda:1"]), ("cuda", None, []), ("cpu", None, [])],
)
def test_the_device_of_the_run_is_the_one_that_launches_go_to(
    gpus: list[str], asked: str, worker: str | None, made_current: list[str]
) -> None:
    checks.choose_device(asked, worker)
    assert gpus == made_current


def test_a_device_that_is_not_there_is_a_usage_error_of_one_line(gpus: list[str]) -> None:
    with pytest.raises(pytest.UsageError, match=r"^--device=cuda:3: CUDA error: invalid device ordinal$"):
        checks.choose_device("cuda:3")
    assert gpus == []


def test_two_workers_of_a_run_are_on_two_devices(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "made_up.py").write_text(MADE_UP, encoding="utf-8")
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "made_up", "-p", "no:cacheprovider", "-n", "2", "--impl=torch"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    on = {path.stem: path.read_text() for path in tmp_path.glob("*.device")}
    assert on == {"gw0": "cuda:0", "gw1": "cuda:1", "controller": ""}, ended.stdout + ended.stderr


def test_a_benchmark_is_not_timed_by_a_worker_and_says_why(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites.bench.test_allocator", "--impl=paged-python"]
    options = ["--bench", "-n", "1", "--results=run", "-p", "no:cacheprovider"]
    ended = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    rows = read_run(tmp_path / "run").latest("benchmark")
    assert rows, ended.stdout + ended.stderr
    assert {row["timed"] for row in rows} == {False}
    assert all("under pytest-xdist: run it in one process" in row["reason"] for row in rows)


def test_a_script_names_no_number_of_a_device_that_only_this_machine_has() -> None:
    script = render(Failure("title", "story", "torch", None, "cuda:3", calls=()))
    assert 'DEVICE = "cuda"\n' in script
    assert "cuda:3" in script.partition('"""\n\nimport')[0]
