"""Which MLflow is meant, whether anybody is there, and a client that says no word of its own."""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit

from kvproof_reports.extras import need

VARIABLE = "MLFLOW_TRACKING_URI"
DEFAULT_URI = "sqlite:///mlflow.db"

ANSWER_SECONDS = 4
"""For the first answer of a server. MLflow would ask for minutes, and for as long whether a database is there."""

TURN_SECONDS = 120
"""For others to have sent their runs to the same SQLite file; one takes a few seconds."""

PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Databases that answer a connection, and where, unless the URI says it."""

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""For each later request, unless the user has set them: a busy server is waited for, one that died in the middle is
given up after half a minute."""

SILENCE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Unreachable(OSError):
    """Nobody answers at a tracking URI."""


def resolved(uri: str | None) -> str:
    """``uri``, else MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db``; an empty text is none."""
    return uri or os.environ.get(VARIABLE) or DEFAULT_URI


def without_password(text: str) -> str:
    """A URI, or a text that holds some, as it may be printed."""
    return re.sub(r"(://[^/@:\s]*):[^/@\s]*@", r"\1:***@", text)


def connect(uri: str) -> Any:
    """An ``MlflowClient``. Use it within ``quiet``.

    Raises:
        Unreachable: a server at ``uri`` gives no answer within ANSWER_SECONDS.
        MissingExtra: mlflow is not installed.
    """
    _require_answer(urlsplit(uri))
    return need("mlflow", "mlflow").MlflowClient(tracking_uri=uri)


def database_file(uri: str) -> Path | None:
    """The SQLite file that ``uri`` means, whether it is there or not; None for anything else."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """One process at a time of those that send to one SQLite file: two that make MLflow's tables at once both fail.

    Raises:
        Unreachable: another process has been sending for TURN_SECONDS.
    """

    if (file := database_file(uri)) is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file.parent, os.O_RDONLY)  # locks of the file itself are SQLite's
    try:
        _wait_for_turn(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait_for_turn(descriptor: int) -> None:
    import fcntl

    deadline = time.monotonic() + TURN_SECONDS
    while time.monotonic() < deadline:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(TURN_SECONDS / 1000)
    raise Unreachable(f"another process has been sending to it for {TURN_SECONDS} s")


@contextmanager
def quiet() -> Iterator[None]:
    """MLflow's settings, log, printed links and warnings, within the call only."""
    before = {name: os.environ.get(name) for name in (*PATIENCE, *SILENCE)}
    level = logging.root.manager.disable
    os.environ.update({name: os.environ.get(name, value) for name, value in PATIENCE.items()} | SILENCE)
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _require_answer(uri: SplitResult) -> None:
    """Of a server; a file has nobody who could answer. Without MLflow, whose import alone takes seconds."""
    try:
        if uri.scheme in ("http", "https"):
            _ask(uri)
        elif (port := PORTS.get(uri.scheme.partition("+")[0])) is not None and uri.hostname:
            socket.create_connection((uri.hostname, uri.port or port), ANSWER_SECONDS).close()
    except OSError as error:
        reason = error.reason if isinstance(error, URLError) else error
        timed_out = isinstance(reason, TimeoutError)
        raise Unreachable(f"no answer within {ANSWER_SECONDS} s" if timed_out else str(reason)) from None


def _ask(uri: SplitResult) -> None:
    """Any answer will do, from anybody: who it is, MLflow checks when it sends something."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=anybody))
    host = uri.netloc.rpartition("@")[2]
    try:
        opener.open(f"{uri.scheme}://{host}{uri.path.rstrip('/')}/health", timeout=ANSWER_SECONDS).close()
    except HTTPError as answer:
        answer.close()
