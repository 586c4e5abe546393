"""A run back out of MLflow: the results file that ``mlflow_sink`` left there, read like any other."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvproof_reports.extras import need
from kvproof_reports.mlflow_sink import DEFAULT_URI
from kvproof_reports.mlflow_sink import _quiet as quiet
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
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    _require_database(uri)
    with quiet(), tempfile.TemporaryDirectory() as folder:
        client = need("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
        tags = _tags(client, run_id, uri)
        session = tags["mlflow.parentRunId"] if tags.get("kvproof.kind") == "implementation" else run_id
        run = _read(_fetch(client, session, uri, folder), run_id)
    return _only(run, tags["kvproof.implementation"]) if session != run_id else run


def _require_database(uri: str) -> None:
    """MLflow would make an empty one."""
    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if uri.startswith("sqlite:///") and not path.is_file():
        raise MlflowRunError(f"{uri}: no such database; give --mlflow URI, or set MLFLOW_TRACKING_URI")


def _tags(client: Any, run_id: str, uri: str) -> Mapping[str, str]:
    try:
        tags: Mapping[str, str] = client.get_run(run_id).data.tags
    except Exception as error:  # of MLflow, or of whatever it reaches the server with
        raise MlflowRunError(f"{uri}: run {run_id}: {_first_line(error)}") from None
    if "kvproof.run_id" not in tags:
        text = "has no tag kvproof.run_id, so kvproof did not make it; name one that `kvproof log` has sent"
        raise MlflowRunError(f"{uri}: run {run_id} {text}")
    return tags


def _fetch(client: Any, run_id: str, uri: str, folder: str) -> Path:
    try:
        return Path(client.download_artifacts(run_id, FILE_NAME, dst_path=folder))
    except Exception as error:
        text = f"has no {FILE_NAME} ({_first_line(error)}); send the run again with `kvproof log`"
        raise MlflowRunError(f"{uri}: run {run_id} {text}") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


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
