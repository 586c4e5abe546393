"""A results file outlives its writer: killed at any moment, with a full disk, or beside another, it loses no record."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof_reports import appending
from kvproof_reports.appending import TORN, Appender, Busy, hold
from kvproof_reports.records import FILE_NAME, RunWriter, read_run

LAW = {"law": "G18", "sentence": "s", "implementation": "mine", "outcome": "verified", "seconds": 1.0}
WRITES = """
import sys
from kvproof_reports.records import RunWriter
writer = RunWriter(sys.argv[1])
for i in range(10**6):
    print(writer.write("law", **eval(sys.argv[2]), test=str(i))["test"], flush=True)
"""
FILLS = """
import resource, sys
from kvproof_reports.records import RunWriter
writer, num_failed, largest = RunWriter(sys.argv[1]), 0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, largest))
for i in range(6):
    try:
        writer.write("law", **eval(sys.argv[2]), test=str(i))
    except OSError:
        num_failed += 1
print(num_failed, len(writer.appender.waiting))
resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
writer.write("law", **eval(sys.argv[2]), test="6")
"""


def started(script, folder):
    return subprocess.Popen([sys.executable, "-c", script, str(folder), repr(LAW)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("num_written", [1, 7, 200])
def test_a_run_that_is_killed_leaves_every_record_that_it_has_written(tmp_path, num_written):
    with started(WRITES, tmp_path) as writing:
        told = [writing.stdout.readline().strip() for _ in range(num_written)]
        writing.send_signal(signal.SIGKILL)
        told += writing.stdout.read().split()  # a line that was on its way is whole or, the last one, isn't

    found = [record["test"] for record in read_run(tmp_path).records]

    assert found[: len(told) - 1] == told[:-1]
    assert len(found) - len(told) in (-1, 0, 1)


def test_a_file_that_is_cut_anywhere_loses_the_record_that_is_cut_and_no_other(tmp_path):
    writer = RunWriter(tmp_path / "whole", run_id="run")
    kept = [writer.write("law", **LAW, test=str(i)) for i in range(2)]
    whole = writer.path.read_bytes()
    (tmp_path / "cut").mkdir()
    for size in range(whole.index(b"\n") + 1, len(whole)):
        (tmp_path / "cut" / FILE_NAME).write_bytes(whole[:size])
        again = RunWriter(tmp_path / "cut", run_id="run").write("law", **LAW, test="again")
        run = read_run(tmp_path / "cut")
        is_torn = size < len(whole) - 1 and whole[size - 1 : size] != b"\n"
        assert run.records == ((kept[0], again) if size < len(whole) - 1 else (*kept, again))
        assert len(run.notes) == is_torn


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room_again(tmp_path):
    filling = started(FILLS, tmp_path)
    assert filling.communicate(timeout=60)[0].split() == ["4", "4"]
    assert filling.returncode == 0

    run = read_run(tmp_path)

    assert [record["test"] for record in run.records] == list("0123456")
    assert len(run.notes) == 1, "the half of a record that had room"


def test_what_a_full_disk_never_takes_is_saved_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(appending.tempfile, "tempdir", str(tmp_path))
    appender = Appender(Path("/dev/full"))
    for line in (b"{}\n", b"[]\n"):
        with pytest.raises(OSError, match="No space left"):
            appender.append(line)
    assert appender.save_elsewhere().read_bytes() == b"{}\n[]\n"


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / FILE_NAME
    mine = hold(path)
    with pytest.raises(Busy, match="another run is writing there"):
        hold(path)
    os.close(mine)
    os.close(hold(path))


def test_a_torn_line_is_closed_once(tmp_path):
    path = tmp_path / FILE_NAME
    path.write_bytes(b'{"a": 1}\n{"b')
    for number in range(2):
        Appender(path).append(json.dumps({"c": number}).encode() + b"\n")
    assert path.read_bytes() == b'{"a": 1}\n{"b' + TORN + b'{"c": 0}\n{"c": 1}\n'
