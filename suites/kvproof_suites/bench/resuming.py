"""What a run has measured already: the rest of it is done by ``--resume``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof_suites.bench.contests import entrant_of

KEY = (
    *("implementation", "group", "operation", "point", "block_size", "table", "cache", "mode"),
    *("num_q_heads", "num_kv_heads", "head_dim", "value_dim", "dtype", "kv_dtype"),
)
"""What tells one row from another in one run, and is known before it is measured."""


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)


def rows_of(folder: Path) -> set[tuple[Any, ...]]:
    """Of the benchmarks that lie in ``folder``; a run that is not there yet has none."""
    from kvproof_reports.records import RecordError, read_run

    path = folder / "results.jsonl"
    if not path.exists() or path.stat().st_size == 0:
        return set()
    try:
        return {key_of(record) for record in read_run(path).latest("benchmark")}
    except RecordError as error:
        raise pytest.UsageError(f"--resume: {error}") from None


def whole_contests(items: Sequence[pytest.Item], done: set[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Of ``done``, the rows of contests that lack none: the rest of one, timed on another machine, would be compared
    with what this one gave."""
    entrants = [(entrant[1].contest, row_key(item)) for item in items if (entrant := entrant_of(item))]
    parts = {contest for contest, key in entrants if key not in done}
    return {key for contest, key in entrants if key in done and contest not in parts}


def row_key(item: pytest.Item) -> tuple[Any, ...] | None:
    """Of the row that a test will write; None for one that is no row of a contest."""
    entrant = entrant_of(item)
    return None if entrant is None else key_of({"implementation": entrant[0], **entrant[1].fields()})
