"""Other processes at the same MLflow: one that keeps an SQLite file costs one warning and no more, until it lets go;
one that sends the same run to a server costs none."""

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


@pytest.mark.parametrize(("num_refused", "status"), [(1, "logged"), (2, "logged"), (3, "failed")])
def test_a_run_whose_sending_another_has_overtaken_is_looked_at_anew(build, database, monkeypatch, num_refused, status):
    import mlflow

    folder, calls, lives = build("a").everything(), [], mlflow.MlflowClient.log_batch

    def overtaken(*arguments, **named):
        calls.append(arguments)
        if len(calls) <= num_refused:
            told = {"error_code": "INVALID_PARAMETER_VALUE", "message": "must be in the 'active' state"}
            raise mlflow.exceptions.RestException(told)
        return lives(*arguments, **named)

    monkeypatch.setattr("kvproof_reports.mlflow_sink.PAUSES", (0.0, 0.0))
    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", overtaken)
    assert log_run(folder, database).status == status


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
