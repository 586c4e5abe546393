"""A worker that does not keep to what was agreed is ended in its case, for the true reason, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvproof_suites import memory
from kvproof_suites.isolation import folders, processes, watch, worker
from kvproof_suites.isolation.death import Death
from kvproof_suites.isolation.worker import Limits, Worker
from selftest.isolation.impostor import STRANGER

IMPOSTOR = Path(__file__).with_name("impostor.py")
ENDS = {
    "babble": ("crashed", "bytes, and 67,108,864 are allowed"),
    "boast": ("crashed", "it sent a message of 9,223,372,036,854,775,808 bytes"),
    "nest": ("crashed", "it sent a message that is no JSON: maximum recursion depth exceeded"),
    "stop_in_the_middle": ("crashed", "it sent a message cut short after 1 of 1000 bytes"),
    "trickle": ("timed_out", "after 2 s it had sent half a message"),
    "answer_without_a_number": ("crashed", "it sent an answer to no question"),
    "let_go": ("crashed", "it left by itself with exit code 3"),
    "start_strangers": ("out_of_memory", "GB, and 0.5 are allowed"),
    "leave_a_stranger": ("crashed", "it left by itself with exit code 3"),
    "take_a_strange_name": ("timed_out", "no answer for 2 s"),
    "fill": ("out_of_disk", "MB left, and"),
    "print_a_lot": ("out_of_disk", "MB, and 100 are allowed"),
}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter whose every module is the impostor."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{IMPOSTOR}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB more, and the reserve of the disk is touched."""

    def reserves(folders: list[Path]) -> dict[Path, int]:
        return {folder: shutil.disk_usage(folder).free - 20_000_000 for folder in folders}

    monkeypatch.setattr(worker, "reserves", reserves)


@pytest.mark.parametrize("act", ENDS)
def test_what_it_does_ends_its_case_with_a_true_status_and_another_is_started(
    act: str, python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if act == "fill":
        request.getfixturevalue("nearly_full")
    started = Worker(python, [act], tmp_path, Limits(2 if ENDS[act][0] == "timed_out" else 30, 500_000_000))
    try:
        started.hello()
        temporary = started.temporary
        for _ in range(2):
            with pytest.raises(Death) as ended:
                started.run("a case")
            assert (ended.value.status, ENDS[act][1] in ended.value.told) == (ENDS[act][0], True), ended.value.told
            assert processes.of_worker(started.token) == []
            assert strangers() == []
            started.kill()
            assert not started.temporary.exists()
        assert started.temporary != temporary
        assert not temporary.exists()
    finally:
        code = started.close()
    assert code == 0, "what a case has told of is not told again"


JUDGE = """
import os, signal, sys, tempfile
from pathlib import Path
from kvproof_suites.isolation.worker import Limits, Worker
started = Worker(Path(sys.argv[1]), ["trickle"], Path.cwd(), Limits(30))
started.hello()
(started.temporary / "kept").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_judge_that_was_killed_has_left_is_removed_by_the_next(python: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    subprocess.run([sys.executable, "-c", JUDGE, str(python)], cwd=tmp_path, check=False, timeout=60)
    (left,) = tmp_path.glob("kvproof-worker-*")
    held, descriptor = folders.make()
    others = tmp_path / "kvproof-worker-link"
    others.symlink_to(tmp_path / "mine", target_is_directory=True)
    (tmp_path / "mine").mkdir()
    folders.remove_left()
    assert left.exists(), "it may be that of a judge which is about to hold it"
    for folder in (left, held, tmp_path / "mine"):
        os.utime(folder, (0, 0))
    folders.remove_left()
    os.close(descriptor)
    assert [left.exists(), held.exists(), (tmp_path / "mine").exists()] == [False, True, True]


def strangers() -> list[bytes]:
    """What they were started by."""
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [command for command in commands if STRANGER.encode() in command]


def test_a_container_that_is_nearly_full_counts_as_a_machine_that_is(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    told = {"max": "1000000", "current": "990000", "stat": "anon 900000\ninactive_file 10000\n"}
    for name, text in told.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.of_host() == (20_000, 1_000_000)
    over = watch.Watch(1, "nobody", None, {})
    assert over.excess() == ("out_of_memory", f"out of memory: {over._machine()}")
    (tmp_path / "memory.max").write_text("max\n")
    assert over.excess() is None
