"""How MLflow is reached: which server, how long an answer may take, and what is left of it afterwards."""

import logging
import os
import socket
import sys
import time

import pytest

from kvproof_reports.mlflow_client import PATIENCE, SILENCE, Unreachable, connect, quiet, resolved, without_password


@pytest.mark.parametrize(
    ("given", "variable", "meant"),
    [
        ("sqlite:///mine.db", "http://team:5000", "sqlite:///mine.db"),
        (None, "http://team:5000", "http://team:5000"),
        ("", "http://team:5000", "http://team:5000"),
        (None, "", "sqlite:///mlflow.db"),
    ],
)
def test_what_is_given_comes_before_the_variable_and_a_file_here_after_it(monkeypatch, given, variable, meant):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert resolved(given) == meant


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://kv:s3cret@db:5432/mlflow", "postgresql://kv:***@db:5432/mlflow"),
        ("asked http://u:p@team/x in vain", "asked http://u:***@team/x in vain"),
        ("http://team:5000/a:b@c", "http://team:5000/a:b@c"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
    ],
)
def test_a_password_is_not_shown(text, shown):
    assert without_password(text) == shown


@pytest.fixture
def port():
    """Of a socket that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield listening.getsockname()[1]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_never_answers_is_given_up_before_mlflow_is_loaded(monkeypatch, port, scheme):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="no answer within 4 s"):
        connect(f"{scheme}://user:pw@127.0.0.1:{port}/mlflow")
    assert time.monotonic() - started < 6


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "mysql+pymysql"])
def test_a_refused_connection_is_told_at_once(monkeypatch, scheme):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        started = time.monotonic()
        with pytest.raises(Unreachable, match="Connection refused"):
            connect(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}")
    assert time.monotonic() - started < 2


def test_settings_of_the_user_stay_and_nothing_of_ours_does(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    before = {name: os.environ.get(name) for name in (*PATIENCE, *SILENCE)}

    with quiet():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
        assert not logging.getLogger("mlflow").isEnabledFor(logging.ERROR)

    assert {name: os.environ.get(name) for name in before} == before
    assert logging.root.manager.disable == logging.NOTSET
