"""An SQLite file that another process keeps costs one warning and no more; when it lets go the run is sent as ever."""

import fcntl
import logging
import os
import sqlite3
import time
from contextlib import closing

import pytest

from kvproof_reports import mlflow_client
from kvproof_reports.mlflow_client import database_file
from kvproof_reports.mlflow_sink import log_run


@pytest.fixture
def one_warning(caplog):
    """What the only warning says; none was there before."""
    caplog.set_level(logging.WARNING)

    def told():
        (record,) = caplog.records
        caplog.clear()
        return record.getMessage()

    return told


def test_a_database_that_is_locked_is_one_warning_and_is_sent_to_later(build, database, one_warning):
    folder, impatient = build("a").everything(), f"{database}?timeout=0.2"
    with closing(sqlite3.connect(database_file(database))) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert log_run(folder, impatient).status == "failed"
        assert "database is locked" in one_warning()
    assert log_run(folder, impatient).logged == ("torch", "triton", "paged", "contiguous")


def test_a_process_that_never_ends_its_sending_is_waited_for_no_longer_than_said(
    build, database, one_warning, monkeypatch
):
    monkeypatch.setattr(mlflow_client, "TURN_SECONDS", 0.5)
    folder = build("a").everything()
    started, held = time.monotonic(), os.open(database_file(database).parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert log_run(folder, database).status == "failed"
        assert "another process has been sending to it for 0.5 s" in one_warning()
        assert time.monotonic() - started < 5
    finally:
        os.close(held)
    assert log_run(folder, database).status == "logged"
