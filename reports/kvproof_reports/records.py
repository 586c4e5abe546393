"""A run on disk: ``results.jsonl``, one record a line, appended as it comes. It is the source of truth.

The fields are in ``schema``. Every record is written with one call to an append-only file, so a killed run keeps what
it measured, and two pytest processes that follow each other may share one run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvproof_reports.appending import TORN, Appender
from kvproof_reports.content import lines_of
from kvproof_reports.older import upgraded
from kvproof_reports.schema import COMMON, KINDS, SCHEMA_VERSION
from kvproof_reports.texts import shortened, storable
from kvproof_reports.validate import MOST_FAULTS, RecordError, complete, faults, from_json, to_json

__all__ = ["FILE_NAME", "SCHEMA_VERSION", "RecordError", "Run", "RunWriter", "read_run", "record_id"]

FILE_NAME = "results.jsonl"


def record_id(run_id: str, kind: str, record: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that stay the same however often the record is written or sent."""
    identity = {name: record.get(name) for name, field in KINDS[kind].items() if field.identity}
    return _digest([run_id, kind, identity or record["time_utc"]])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class RunWriter:
    """Appends records to ``folder/results.jsonl``; makes the folder. The run is called after the folder."""

    def __init__(self, folder: str | Path, run_id: str | None = None) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / FILE_NAME
        self.run_id = run_id or self.folder.resolve().name
        self.appender = Appender(self.path)

    def write(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        """Append one record and return it, complete. A text that no reader takes is changed: a failure may tell
        megabytes, and the file has to stay good.

        Raises:
            RecordError: naming each faulty field; nothing is written.
            OSError: the file doesn't take it now; it waits for the next call, in ``appender.waiting``.
        """
        if reserved := sorted(set(fields) & (set(COMMON) - {"time_utc"})):
            raise RecordError(f"{kind} record: {reserved[0]}: is set by the writer")
        record = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "run_id": self.run_id,
            "record_id": "",
            "time_utc": datetime.now(UTC).isoformat(timespec="microseconds"),
            **shortened(storable(fields)),
        }
        if wrong := faults(record):
            raise RecordError("\n".join(f"{kind} record: {what}" for what in wrong))
        record["record_id"] = record_id(self.run_id, kind, record)
        record = complete(record)
        self.appender.append((json.dumps(to_json(record), allow_nan=False) + "\n").encode("ascii"))
        return record


@dataclass(frozen=True)
class Run:
    """What ``read_run`` found."""

    path: Path
    """The results file."""
    run_id: str
    records: tuple[dict[str, Any], ...]
    """All of them, in the order written, each with every field of its kind."""
    notes: tuple[str, ...] = ()
    """What a reader should be told, such as a torn line."""

    def latest(self, kind: str) -> list[dict[str, Any]]:
        """The records of ``kind``; of those with one record_id only the last, at the place of the first."""
        found = {record["record_id"]: record for record in self.records if record["kind"] == kind}
        return list(found.values())


def read_run(folder_or_file: str | Path) -> Run:
    """Read and check a whole run.

    Raises:
        RecordError: ``file:line: field: what`` for every fault, up to MOST_FAULTS; or the file is not there, can't be
            read, holds nothing, or more than a run can have written.
    """
    try:
        return _read(_results_file(Path(folder_or_file)))
    except OSError as error:
        raise RecordError(f"{folder_or_file}: can't be read: {error.strerror}") from None


def _read(path: Path) -> Run:
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    wrong: list[str] = []
    for number, line in enumerate(lines_of(path), start=1):
        record, problems = _parse(line)
        if record is not None:
            problems = faults(record) or _other_run(record, records)
        elif problems and (line.endswith(TORN) or not line.endswith(b"\n")):
            notes.append(f"{path.name}:{number}: torn line left out: the run was killed while writing it")
            continue
        wrong += [f"{path}:{number}: {problem}" for problem in problems]
        if len(wrong) > MOST_FAULTS:
            break
        if record is not None and not problems:
            records.append(complete(upgraded(record)))
    if wrong or not records:
        raise RecordError("\n".join(wrong) or f"{path}: holds no record")
    return Run(path, records[0]["run_id"], tuple(records), tuple(notes))


def _results_file(given: Path) -> Path:
    """The file itself, or the one in a folder: as written, or packed for publication."""
    path = given / FILE_NAME if given.is_dir() else given
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        raise RecordError(f"{path}: no such results file; a run folder holds a {FILE_NAME}")
    return path if path.is_file() else packed


def _parse(line: bytes) -> tuple[dict[str, Any] | None, list[str]]:
    """The record of a line, or what is wrong with it; neither for an empty line."""
    text = line.removesuffix(TORN).strip()
    if not text:
        return None, []
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, [f"line: not JSON ({error})"]
    return (from_json(storable(record)), []) if isinstance(record, dict) else (None, ["line: not a JSON object"])


def _other_run(record: Mapping[str, Any], records: list[dict[str, Any]]) -> list[str]:
    if records and record["run_id"] != records[0]["run_id"]:
        return [f"run_id: {record['run_id']!r}, but this file began as run {records[0]['run_id']!r}"]
    return []
