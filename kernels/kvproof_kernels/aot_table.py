"""The committed table of what each compiled variant takes, one CSV line a row, and how new figures compare with it.

Figures depend on the version of Triton, so that each version has rows of its own; one without rows has nothing to be
compared with. Fewer programs on a multiprocessor than the table says is a regression, more registers alone is not.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kvproof_kernels.resources import Resources

WAY_OUT = "If it is meant: `make aot`, look at the change, and commit kernels/aot.csv and kernels/AOT.md."


@dataclass(frozen=True)
class Row:
    """What one variant takes on one chip, as one version of Triton compiles it."""

    triton: str
    resources: Resources

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.triton, self.resources.kernel, self.resources.case, self.resources.target


Key = tuple[str, str, str, str]
"""(version of Triton, kernel, case, target)."""


def read_table(file: Path) -> list[Row]:
    """The rows of a table, none where there is no file.

    Raises:
        ValueError: the file has other columns than ``Row``.
    """
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != _columns():
            raise ValueError(
                f"{file} has columns {reader.fieldnames}, not {list(_columns())}: write it anew by `make aot`"
            )
        return [_row(line) for line in reader]


def write_table(file: Path, rows: Iterable[Row]) -> None:
    """Write ``rows`` in the order of their keys; rows of other versions of Triton are the caller's to keep."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, _columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {"triton": row.triton, **asdict(row.resources)} for row in sorted(rows, key=lambda row: row.key)
        )


def regression(row: Row, table: Iterable[Row]) -> str | None:
    """What has become worse than in ``table``, or None; also None where it has no such row of this version."""
    new, old = row.resources, next((known.resources for known in table if known.key == row.key), None)
    if old is None:
        return None
    name = f"{new.kernel} ({new.case}) on {new.target} with Triton {row.triton}"
    if new.occupancy.programs < old.occupancy.programs:
        return (
            f"{name}: {new.occupancy.programs} programs a multiprocessor, {old.occupancy.programs} in the table, for "
            f"lack of {new.occupancy.bound} ({_changes(old, new)}). {WAY_OUT}"
        )
    return None


def vanished(keys: Iterable[Key], table: Iterable[Row], triton: str) -> list[str]:
    """Rows of the table that no variant of ``keys`` stands for any more, for one version of Triton."""
    known = set(keys)
    return [
        f"{' / '.join(row.key[1:])} is in the table and no longer compiled. {WAY_OUT}"
        for row in table
        if row.triton == triton and row.key not in known
    ]


def _changes(old: Resources, new: Resources) -> str:
    names = ("tile", "num_warps", "num_stages", "registers", "shared_bytes", "tensor_columns")
    changed = ((name, getattr(old, name), getattr(new, name)) for name in names)
    return ", ".join(f"{name} {was} -> {now}" for name, was, now in changed if was != now)


def _columns() -> tuple[str, ...]:
    return ("triton", *(field.name for field in fields(Resources)))


def _row(line: Mapping[str, str]) -> Row:
    texts = ("kernel", "case", "target", "tile")
    figures = {name: value if name in texts else _figure(value) for name, value in line.items() if name != "triton"}
    return Row(line["triton"], Resources(**figures))  # type: ignore[arg-type]


def _figure(text: str) -> int | None:
    return int(text) if text else None
