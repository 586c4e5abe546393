"""A run in MLflow: a parent run for the session, a child for each implementation.

The results file stays the truth. Sending it twice changes nothing; sending it after it grew replaces the children that
changed. A child gets its digest as the last thing, so one that was cut off in the middle is replaced too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof_reports.extras import MissingExtra, need
from kvproof_reports.metrics import points
from kvproof_reports.records import Run, read_run
from kvproof_reports.verdict import Subject, subjects

EXPERIMENT = "kvproof"
DEFAULT_URI = "sqlite:///mlflow.db"
ARTEFACTS = ("report.html", "report.md", "results.jsonl")

_ENVIRONMENT = {
    # The defaults retry for minutes; a server that is down may cost a run seconds.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}
_BATCH = 1000
"""Metrics in one request; the most that MLflow takes."""

_log = logging.getLogger("kvproof")


@dataclass(frozen=True)
class Summary:
    """What became of a run that was sent."""

    status: str
    """logged, unchanged or failed"""
    tracking_uri: str
    message: str
    parent_run_id: str | None = None
    logged: tuple[str, ...] = ()
    """Implementations sent now."""
    unchanged: tuple[str, ...] = ()
    """Implementations that were there already, the same."""


def log_run(run_folder: str | Path, tracking_uri: str | None = None) -> Summary:
    """Send a run. ``tracking_uri``: else MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db``.

    A server that fails or can't be reached costs one warning in the log and gives status "failed"; nothing is raised.

    Raises:
        MissingExtra: mlflow is not installed.
        RecordError: the results file is faulty; nothing is sent.
    """
    run = read_run(run_folder)
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    with _quiet():
        client_class = need("mlflow", "mlflow").MlflowClient
        try:
            return _send(client_class(tracking_uri=uri), uri, run)
        except MissingExtra:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0][:300]
            message = f"{uri}: {type(error).__name__}: {first_line}"
    _log.warning("MLflow could not be reached or failed; the results stay on disk, send them later: %s", message)
    return Summary("failed", uri, message)


@contextmanager
def _quiet() -> Iterator[None]:
    """MLflow's settings, its migration log, retry messages and warnings, within the call only."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    level = logging.root.manager.disable
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.WARNING)
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


def _send(client: Any, uri: str, run: Run) -> Summary:
    experiment = _experiment(client, uri)
    parent = _parent(client, experiment, run)
    logged, unchanged = [], []
    for subject in subjects([run]):
        digest = _digest(subject)
        old = _find(client, experiment, {"kvproof.run_id": run.run_id, "kvproof.implementation": subject.name})
        if any(child.data.tags.get("kvproof.digest") == digest for child in old):
            unchanged.append(subject.name)
            continue
        for child in old:
            client.delete_run(child.info.run_id)
        _send_child(client, experiment, parent, subject, digest)
        logged.append(subject.name)
    _finish_parent(client, parent, run)
    told = f"{run.run_id}: {len(logged)} of {len(logged) + len(unchanged)} implementations sent to {uri}"
    return Summary("logged" if logged else "unchanged", uri, told, parent, tuple(logged), tuple(unchanged))


def _experiment(client: Any, uri: str) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(EXPERIMENT, artifact_location=_artefact_location(uri)))


def _artefact_location(uri: str) -> str | None:
    """Beside an SQLite database; a server decides for itself."""
    if not uri.startswith("sqlite:///"):
        return None
    database = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    return (database.resolve().parent / "mlartifacts").as_uri()


def _find(client: Any, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """Runs with exactly these tags. Only the first is asked for by MLflow's filter language, on its hexadecimal key."""
    key = _key(tags["kvproof.run_id"])
    found = client.search_runs([experiment], filter_string=f"tags.`kvproof.run_key` = '{key}'", max_results=1000)
    return [run for run in found if all(run.data.tags.get(name) == value for name, value in tags.items())]


def _key(text: str) -> str:
    """A run id may hold quotes, which the filter language can't; its hash can't."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _parent(client: Any, experiment: str, run: Run) -> str:
    tags = {"kvproof.run_id": run.run_id, "kvproof.kind": "session"}
    found = _find(client, experiment, tags)
    if found:
        return str(found[0].info.run_id)
    made = client.create_run(experiment, run_name=run.run_id, tags={**tags, "kvproof.run_key": _key(run.run_id)})
    return str(made.info.run_id)


def _finish_parent(client: Any, parent: str, run: Run) -> None:
    for name, value in _session(run).items():
        client.set_tag(parent, f"kvproof.{name}", value)
    for end in run.latest("end")[-1:]:
        client.set_tag(parent, "kvproof.verdict", end["verdict"])
        client.set_tag(parent, "kvproof.exit_code", str(end["exit_code"]))
    for name in ARTEFACTS:
        if (path := run.path.parent / name).is_file():
            client.log_artifact(parent, str(path))
    client.set_terminated(parent, status="FINISHED")


def _send_child(client: Any, experiment: str, parent: str, subject: Subject, digest: str) -> None:
    tags = {
        "mlflow.parentRunId": parent,
        "kvproof.run_id": subject.run.run_id,
        "kvproof.run_key": _key(subject.run.run_id),
        "kvproof.kind": "implementation",
        "kvproof.implementation": subject.name,
        "kvproof.verdict": subject.verdict,
    }
    child = client.create_run(experiment, run_name=subject.label, tags=tags).info.run_id
    entities = need("mlflow.entities", "mlflow")
    about = {"implementation": subject.name, "implementation_version": subject.about["version"] or "unknown"}
    params = [entities.Param(name, value) for name, value in {**about, **_session(subject.run)}.items()]
    client.log_batch(child, params=params)
    metrics = [entities.Metric(p.name, p.value, p.time_ms, p.step) for p in points(subject)]
    for start in range(0, len(metrics), _BATCH):
        client.log_batch(child, metrics=metrics[start : start + _BATCH])
    client.set_terminated(child, status="FINISHED")
    client.set_tag(child, "kvproof.digest", digest)


def _session(run: Run) -> dict[str, str]:
    """Of the last session: tier, seed, device, and each known fact of the environment."""
    for session in run.latest("session")[-1:]:
        facts = {name: session[name] for name in ("tier", "seed", "device")} | session["environment"]
        return {name: str(value) for name, value in facts.items() if value is not None}
    return {}


def _digest(subject: Subject) -> str:
    """Of everything that a child shows."""
    shown = [subject.about, _session(subject.run), *subject.laws, *subject.benchmarks, *subject.replays]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
