"""A run back out of MLflow: the results file that ``mlflow_sink`` left there, read like any other."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvproof_reports.extras import MissingExtra
from kvproof_reports.mlflow_client import connect, database_file, quiet, resolved, without_password
from kvproof_reports.records import FILE_NAME, RecordError, Run, read_run

RUN_ID = re.compile(r"(?:runs:/)?([0-9a-f]{32})")


class MlflowRunError(ValueError):
    """An MLflow run that can't be read as one of ours. The text says why, and what to do."""


def mlflow_run_id(name: str) -> str | None:
    """The id in ``name``, 32 hexadecimal digits with or without ``runs:/``; None when it is something else."""
    found = RUN_ID.fullmatch(name)
    return found[1] if found else None


def read_mlflow_run(run_id: str, tracking_uri: str | None = None) -> Run:
    """Fetch and check a run. The run of an implementation gives the records of that implementation alone.

    Args:
        tracking_uri: else MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db``.

    Raises:
        MissingExtra: mlflow is not installed.
        MlflowRunError: no such run or server, or one that ``kvproof log`` did not make.
        RecordError: its results file is faulty.
    """
    uri = resolved(tracking_uri)
    _require_database(uri)
    told = without_password(uri)
    with quiet(), tempfile.TemporaryDirectory() as folder:
        client, tags = _found(uri, run_id, told)
        session = tags["mlflow.parentRunId"] if tags.get("kvproof.kind") == "implementation" else run_id
        run = _read(_fetch(client, session, told, folder), run_id)
    return _only(run, tags["kvproof.implementation"]) if session != run_id else run


def _require_database(uri: str) -> None:
    """MLflow would make an empty one."""
    if (path := database_file(uri)) is not None and not path.is_file():
        raise MlflowRunError(f"{uri}: no such database; give --mlflow URI, or set MLFLOW_TRACKING_URI")


def _found(uri: str, run_id: str, told: str) -> tuple[Any, Mapping[str, str]]:
    """A client, and the run's tags."""
    try:
        client = connect(uri)
        tags: Mapping[str, str] = client.get_run(run_id).data.tags
    except MissingExtra:
        raise
    except Exception as error:  # of MLflow, or of whatever it reaches the server with
        raise MlflowRunError(f"{told}: run {run_id}: {_first_line(error)}") from None
    if "kvproof.run_id" not in tags:
        text = "has no tag kvproof.run_id, so kvproof did not make it; name one that `kvproof log` has sent"
        raise MlflowRunError(f"{told}: run {run_id} {text}")
    return client, tags


def _fetch(client: Any, run_id: str, told: str, folder: str) -> Path:
    try:
        return Path(client.download_artifacts(run_id, FILE_NAME, dst_path=folder))
    except Exception as error:
        text = f"has no {FILE_NAME} ({_first_line(error)}); send the run again with `kvproof log`"
        raise MlflowRunError(f"{told}: run {run_id} {text}") from None


def _first_line(error: Exception) -> str:
    return without_password(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")


def _read(path: Path, run_id: str) -> Run:
    """The file is gone soon, and its faults are told under the name that the reader gave."""
    name = Path(f"MLflow run {run_id}", FILE_NAME)
    try:
        return replace(read_run(path), path=name)
    except RecordError as error:
        raise RecordError(str(error).replace(str(path), str(name))) from None


def _only(run: Run, implementation: str) -> Run:
    """The records of one implementation, and those of the run itself."""
    kept = [record for record in run.records if record.get("implementation", implementation) == implementation]
    return replace(run, records=tuple(_alone(record, implementation) for record in kept))


def _alone(record: dict[str, Any], implementation: str) -> dict[str, Any]:
    if record["kind"] != "session":
        return record
    chosen = [entry for entry in record["implementations"] if entry["name"] == implementation]
    return {**record, "implementations": chosen}
