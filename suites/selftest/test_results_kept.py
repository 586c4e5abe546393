"""What a run has found is on disk, or its user is told in one line where it is: provoked by doing it to real runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvproof_reports.appending import hold
from kvproof_reports.records import FILE_NAME, read_run
from kvproof_suites import cli

SLOW = """
import time
from kvproof_impls import load
class Slow(type(load("torch").kernel)):
    def plan(self, *args):
        time.sleep(0.2)
        return super().plan(*args)
"""


def command(impl: str, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "kvproof_suites.kernel"]
    return [*words, f"--impl={impl}", "--isolate=no", "--results=judged", *arguments]


def judge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = command("torch", "-k", "causal_limit", *arguments)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_with_a_full_disk_goes_on_and_its_records_are_kept_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "judged").mkdir()
    (tmp_path / "judged" / FILE_NAME).symlink_to("/dev/full")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    ended = judge(tmp_path)

    assert ended.returncode == cli.INTERNAL_ERROR, ended.stdout + ended.stderr
    (told,) = [line for line in ended.stdout.splitlines() if "No space left on device" in line]
    assert told.startswith("kvproof: 5 records are not in judged/results.jsonl: No space left on device; they are in ")
    (saved,) = (tmp_path / "temporary").glob("kvproof-*")
    run = read_run(saved)
    assert [record["kind"] for record in run.records] == ["session", "law", "law", "law", "end"]
    assert run.run_id == "judged"


def test_on_a_disk_that_fills_up_in_the_middle_of_a_record_none_is_lost(tmp_path, monkeypatch):
    """A real one, of one page. It is gone with the process that has made it, so that its file is copied before."""
    on_a_page = 'mount -t tmpfs -o size=4k none judged && { "$@"; code=$?; cp judged/results.jsonl kept; exit $code; }'
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    for folder in ("judged", "temporary"):
        (tmp_path / folder).mkdir()
    if subprocess.run(
        [*alone, "mount -t tmpfs none judged"], cwd=tmp_path, capture_output=True, check=False
    ).returncode:
        pytest.skip("this machine lets nobody mount a disk of his own")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    words = command("torch", "-k", "needle and not mla")
    ended = subprocess.run(
        [*alone, on_a_page, "sh", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == cli.INTERNAL_ERROR, ended.stdout + ended.stderr
    assert "No space left on device" in ended.stdout
    (saved,) = (tmp_path / "temporary").glob("kvproof-*")
    on_disk = (tmp_path / "kept").read_bytes()
    (tmp_path / "judged" / FILE_NAME).write_bytes(on_disk + saved.read_bytes())
    run = read_run(tmp_path / "judged")
    kinds = [record["kind"] for record in run.records]
    assert len(on_disk) == 4096
    assert kinds == ["session", *["law"] * run.records[-1]["counts"]["verified"], "end"]
    assert len(kinds) > 10


def test_a_folder_that_can_not_be_made_or_written_is_refused_before_any_test(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("/sys/kvproof", "file/inside"):
        ended = judge(tmp_path, f"--results={folder}")
        assert ended.returncode == cli.USAGE_ERROR
        assert f"--results={folder}: " in ended.stderr
        assert "name a folder that can be written" in ended.stderr


def test_a_second_run_in_a_folder_is_refused_while_the_first_goes_on(tmp_path):
    (tmp_path / "judged").mkdir()
    first = hold(tmp_path / "judged" / FILE_NAME)
    ended = judge(tmp_path)
    os.close(first)
    assert ended.returncode == cli.USAGE_ERROR
    assert "--results=judged: another run is writing there; wait for it, or name another folder" in ended.stderr
    assert (tmp_path / "judged" / FILE_NAME).read_bytes() == b""


def test_a_run_that_is_killed_leaves_a_readable_file_and_a_folder_that_can_be_gone_on_in(tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    path = tmp_path / "judged" / FILE_NAME
    with subprocess.Popen(command("mine:Slow"), cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
        wait_for_lines(path, 4)
        with pytest.raises(OSError, match="another run is writing there"):
            hold(path)
        run.send_signal(signal.SIGKILL)
    found = read_run(path)
    assert {record["kind"] for record in found.records} == {"session", "law"}
    assert len(found.records) >= 4
    again = judge(tmp_path)
    assert again.returncode == cli.CONFORMS
    assert "results judged, added to what is there" in again.stdout
    assert read_run(path).records[: len(found.records)] == found.records
    assert [record["kind"] for record in read_run(path).latest("session")] == ["session"] * 2


def wait_for_lines(path: Path, number: int) -> None:
    deadline = time.monotonic() + 100
    while not path.exists() or path.read_bytes().count(b"\n") < number:
        assert time.monotonic() < deadline, f"{path} got no {number} lines"
        time.sleep(0.05)
