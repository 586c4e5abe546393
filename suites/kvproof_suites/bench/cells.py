"""Cells of a benchmark: what one row of the results is about, beside the implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvproof_suites.bench.clocks import MODES
from kvproof_suites.bench.heads import AUTO, Heads, parse_heads
from kvproof_suites.bench.points import Point, parse_point
from kvproof_suites.bench.profiles import Profile, ProfileError, Sweep
from kvproof_suites.bench.tables import STATES

CACHES = ("cold", "hot")
ATTENTION = ("decode", "prefill", "mixed")


@dataclass(frozen=True)
class Cell:
    """One row of a kernel's benchmark."""

    group: str
    """decode, prefill, mixed, write or copy"""
    point: Point
    heads: Heads
    block_size: int
    table: str = "shuffled"
    cache: str = "cold"
    mode: str = "eager"

    @property
    def contest(self) -> tuple[Any, ...]:
        """Cells that agree in this are timed in turns, all implementations of them together."""
        return (self.group, self.point, self.heads, self.block_size)

    @property
    def title(self) -> str:
        """Of a contest, for pytest-benchmark's tables."""
        return f"{self.group}, {self.point}, {self.heads}, block size {self.block_size}"

    def fields(self) -> dict[str, Any]:
        """As the record of a run names them; the context is the longest, where they differ."""
        told = {"group": self.group, "point": str(self.point), "block_size": self.block_size, "table": self.table}
        told |= {"batch": len(self.point.seqs), "context_len": max(self.point.context_lens)}
        return told | self.heads.fields() | {"cache": self.cache, "mode": self.mode}

    def __str__(self) -> str:
        """As the id of a test; what is usual is left out."""
        unusual = [given for given in (self.cache, self.mode) if given not in ("cold", "eager")]
        return "-".join([f"{self.point}-{self.heads}-b{self.block_size}-{self.table}", *unusual])


@dataclass(frozen=True)
class HostCell:
    """One row about work of the host."""

    group: str
    operation: str
    block_size: int
    batch: int

    @property
    def contest(self) -> tuple[Any, ...]:
        return (self.group, self.operation, self.block_size, self.batch)

    @property
    def title(self) -> str:
        return f"{self.group}, {self.operation}, block size {self.block_size}"

    def fields(self) -> dict[str, Any]:
        """As the record of a run names them."""
        told = {"group": self.group, "operation": self.operation, "block_size": self.block_size}
        return told | {"batch": self.batch}

    def __str__(self) -> str:
        return f"{self.operation.replace(' ', '-')}-b{self.block_size}-{self.batch}"


def kernel_cells(profile: Profile, device: str) -> list[Cell]:
    """All of them, each once; cells of one contest lie together.

    Raises:
        ProfileError: a point, heads, type, table, cache or mode that means nothing.
    """
    found = [cell for kind in ("attention", "write", "copy") for cell in _of_kind(profile, kind, device)]
    by_contest: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in dict.fromkeys(found):
        by_contest.setdefault(cell.contest, []).append(cell)
    return [cell for cells in by_contest.values() for cell in cells]


def _of_kind(profile: Profile, kind: str, device: str) -> Iterator[Cell]:
    for i, sweep in enumerate(getattr(profile, kind)):
        try:
            yield from _expand(kind, sweep, device)
        except ValueError as error:
            raise ProfileError(f"profile {profile.name}: {kind}[{i}]: {error}") from None


def _expand(kind: str, sweep: Sweep, device: str) -> Iterator[Cell]:
    for name, known in (("tables", STATES), ("caches", CACHES), ("modes", MODES)):
        if unknown := [given for given in getattr(sweep, name) if given not in known]:
            raise ValueError(f"{name}: {unknown[0]!r} is not one of {', '.join(known)}")
    points = [parse_point(text) for text in sweep.points]
    heads = [
        parse_heads(text, head_dim, dtype, kv_dtype, device)
        for text, head_dim, dtype, kv_dtype in product(
            sweep.heads, sweep.head_dims, sweep.dtypes or (AUTO,), sweep.kv_dtypes or (None,)
        )
    ]
    modes = sweep.modes if device.startswith("cuda") else ("eager",)
    for point, each, size, table, cache, mode in product(
        points, heads, sweep.block_sizes, sweep.tables, sweep.caches, modes
    ):
        yield Cell(point.kind if kind == "attention" else kind, point, each, size, table, cache, mode)
