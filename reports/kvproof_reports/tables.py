"""Tables as data: what a page shows, sorts and filters, and what its CSV holds, from the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from kvproof_reports.figures import NOTHING, figure, percent
from kvproof_reports.rates import Estimate

Row = Mapping[str, Any]

MOST_ROWS = 1000
"""On a page; more would only weigh it down. The CSV holds all."""


@dataclass(frozen=True)
class Column:
    """One column. Without ``show`` it holds text."""

    name: str
    """Key of a row, and the heading in the CSV: it carries the unit."""
    title: str
    show: Callable[[Any], str] | None = None
    hint: str = ""
    bar: bool = False
    """The cell's background tells its share of 1."""
    tag: bool = False
    """Text that is coloured by what it says."""

    def shown(self, row: Row) -> str:
        value = _middle(row.get(self.name))
        if self.show is not None:
            return self.show(value)
        return NOTHING if value is None else str(value)

    def range(self, row: Row) -> str:
        """Between what the value lies, where that is known."""
        value = row.get(self.name)
        return value.range if isinstance(value, Estimate) else ""

    def raw(self, row: Row) -> str | float | None:
        """What is sorted by and written to the CSV."""
        value = _middle(row.get(self.name))
        if isinstance(value, float):
            return value if isfinite(value) else str(value)
        return value if value is None or isinstance(value, int) else str(value)


def _middle(value: Any) -> Any:
    return value.value if isinstance(value, Estimate) else value


@dataclass(frozen=True)
class Table:
    name: str
    """Of the CSV file, and of the table among those of the page."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    facets: Sequence[str] = ()
    """Keys of a row by which the selectors of its section hide it; see ``plots``."""
    marks: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """(row, column) to a class of the style sheet, such as "best"."""

    @property
    def seen(self) -> Sequence[Row]:
        """The rows that the page shows."""
        return self.rows[:MOST_ROWS]

    @property
    def data(self) -> list[list[str | float | None]]:
        """All rows, as they are sorted and saved."""
        return [[column.raw(row) for column in self.columns] for row in self.rows]

    def filled(self) -> Table:
        """Without the columns of numbers that hold nothing in any row: older runs recorded less."""
        kept = [c for c in self.columns if c.show is None or any(row.get(c.name) is not None for row in self.rows)]
        return Table(self.name, kept, self.rows, self.facets, self.marks)


def text(name: str, title: str, **more: Any) -> Column:
    return Column(name, title, **more)


def number(name: str, title: str, hint: str = "") -> Column:
    return Column(name, title, figure, hint)


def share(name: str, title: str, hint: str = "", bar: bool = False) -> Column:
    return Column(name, title, percent, hint, bar=bar)
