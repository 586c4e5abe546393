"""A run in MLflow: a parent run for the session, a child for each implementation.

The results file stays the truth. Sending it twice changes nothing; sending it after it grew replaces the children that
changed. A child gets its digest as the last thing, so one that was cut off in the middle is replaced too. Each sending
ends by looking for what another process has sent meanwhile, and keeps one of a kind.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof_reports.extras import MissingExtra, need
from kvproof_reports.metrics import points
from kvproof_reports.mlflow_client import alone, connect, database_file, quiet, resolved, without_password
from kvproof_reports.records import Run, read_run
from kvproof_reports.verdict import Subject, subjects

EXPERIMENT = "kvproof"
ARTEFACTS = ("report.html", "report.md", "results.jsonl", "junit.xml", "gate.junit.xml")

PAUSES = (0.5, 2.0)
"""Seconds before a run is sent again that the server has refused; one that doesn't answer is not asked again."""

_BATCH = 1000
"""Metrics in one request; the most that MLflow takes."""

_SESSION = (
    "The figures are in the runs below, one for each implementation; report and records are among the artefacts. "
    "In the list of runs, expand this one (+) to chart its implementations side by side."
)
_CHILD = "The step of a metric is the block size in tokens; step 0 is for figures that have none, such as the laws."

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
    """Send a run to ``tracking_uri``, else MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db``.

    A server that fails or can't be reached costs one warning in the log and gives status "failed"; nothing is raised.

    Raises:
        MissingExtra: mlflow is not installed.
        RecordError: the results file is faulty; nothing is sent.
    """
    run = read_run(run_folder)
    uri = resolved(tracking_uri)
    try:
        with quiet(), alone(uri):
            return _send_in_turn(connect(uri), uri, run)
    except MissingExtra:
        raise
    except Exception as error:  # of MLflow, of whatever it reaches a server or a database with
        told = f"{uri}: {type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
    message = f"results stay on disk, send them later by `kvproof log {run_folder}`: {without_password(told)}"
    _log.warning("MLflow failed: %s", message)
    return Summary("failed", without_password(uri), message)


def _send_in_turn(client: Any, uri: str, run: Run) -> Summary:
    """Whoever is done first deletes what another process was sending of the same run: that one looks at it anew."""
    refused = need("mlflow.exceptions", "mlflow").RestException
    for pause_seconds in PAUSES:
        try:
            return _send(client, uri, run)
        except refused:
            time.sleep(pause_seconds)
    return _send(client, uri, run)


def _send(client: Any, uri: str, run: Run) -> Summary:
    experiment = _experiment(client, uri)
    parent = _parent(client, experiment, run)
    logged: list[str] = []
    unchanged: list[str] = []
    for subject in subjects([run]):
        digest = _digest(subject)
        is_there = any(_is_whole(child, digest) for child in _children(client, experiment, subject))
        if not is_there:
            _send_child(client, experiment, parent, subject, digest)
        _keep_one(client, parent, _children(client, experiment, subject), digest)
        (unchanged if is_there else logged).append(subject.name)
    _finish_parent(client, parent, run)
    uri = without_password(uri)
    told = f"{run.run_id}: {len(logged)} of {len(logged) + len(unchanged)} implementations sent to {uri}"
    return Summary("logged" if logged else "unchanged", uri, told, parent, tuple(logged), tuple(unchanged))


def _experiment(client: Any, uri: str) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(EXPERIMENT, _artefact_location(uri)))
    except Exception:
        if (found := client.get_experiment_by_name(EXPERIMENT)) is None:
            raise
        return str(found.experiment_id)  # another process came first


def _artefact_location(uri: str) -> str | None:
    """Beside an SQLite database; a server decides for itself."""
    database = database_file(uri)
    return (database.resolve().parent / "mlartifacts").as_uri() if database else None


def _find(client: Any, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """Runs with exactly these tags. Only the first is asked for by MLflow's filter language, on its hexadecimal key."""
    key = _key(tags["kvproof.run_id"])
    found = client.search_runs([experiment], filter_string=f"tags.`kvproof.run_key` = '{key}'", max_results=1000)
    return [run for run in found if all(run.data.tags.get(name) == value for name, value in tags.items())]


def _key(text: str) -> str:
    """A run id may hold quotes, which the filter language can't; its hash can't."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _children(client: Any, experiment: str, subject: Subject) -> list[Any]:
    tags = {"kvproof.run_id": subject.run.run_id, "kvproof.implementation": subject.name}
    return _find(client, experiment, tags)


def _is_whole(child: Any, digest: str) -> bool:
    return bool(child.data.tags.get("kvproof.digest") == digest)


def _keep_one(client: Any, parent: str, children: Sequence[Any], digest: str) -> None:
    """Of the children of one implementation: those of older results, those cut off, and what came twice, go."""
    kept = _first([child for child in children if _is_whole(child, digest)])
    if kept.data.tags["mlflow.parentRunId"] != parent:
        client.set_tag(kept.info.run_id, "mlflow.parentRunId", parent)
    _delete(client, children, kept)


def _first(runs: Sequence[Any]) -> Any:
    """The same one for every process that asks."""
    return min(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def _delete(client: Any, runs: Sequence[Any], kept: Any) -> None:
    for run in runs:
        if run.info.run_id != kept.info.run_id:
            client.delete_run(run.info.run_id)


def _parent(client: Any, experiment: str, run: Run) -> str:
    """Looked for again after it was made: another process may have made one meanwhile."""
    tags = {"kvproof.run_id": run.run_id, "kvproof.kind": "session"}
    if not _find(client, experiment, tags):
        more = {"kvproof.run_key": _key(run.run_id), "mlflow.source.name": "kvproof", "mlflow.note.content": _SESSION}
        client.create_run(experiment, run_name=run.run_id, tags={**tags, **more})
    found = _find(client, experiment, tags)
    kept = _first(found)
    _delete(client, found, kept)
    return str(kept.info.run_id)


def _finish_parent(client: Any, parent: str, run: Run) -> None:
    for name, value in _session(run).items():
        client.set_tag(parent, f"kvproof.{name}", value)
    if (commit := _session(run).get("git_commit")) is not None:
        client.set_tag(parent, "mlflow.source.git.commit", commit)
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
        "mlflow.source.name": "kvproof",
        "mlflow.note.content": _CHILD,
    }
    name = f"{subject.name} @ {subject.run.run_id}"
    child = client.create_run(experiment, run_name=name, tags=tags).info.run_id
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
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]
