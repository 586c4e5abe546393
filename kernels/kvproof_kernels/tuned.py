"""Tiles that a device was measured to prefer to those of ``tiles.TILES``: the table ``tuned.toml``, read once.

Nothing is tuned while a kernel is judged or timed. ``make tune`` writes the table, a launch looks up what it is, and
finds a tile only where exactly that was measured: chip, rows, form, group size and block size. All else runs as before.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from kvproof_kernels.tiles import Form

TABLE = Path(__file__).with_name("tuned.toml")
HEAD = """\
# Tiles that `make tune` has measured to be faster than those of tiles.py, one a line with exactly what it was measured
# for. speedup: the time of the tile of tiles.py over that of this one, the lower end of its interval in the workload
# that gains most."""
WARPS = (1, 2, 4, 8, 16)


class Tile(NamedTuple):
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Place:
    """What a launch knows and a compiled kernel does not."""

    arch: str
    """ "sm_90", "gfx942", ...: see ``arch_of``."""
    group_size: int
    block_size: int


@dataclass(frozen=True)
class Key:
    """What a tile was measured for."""

    arch: str
    rows: str
    """ "few" or "many", see ``tiles.rows_kind``."""
    head_dim: int
    value_dim: int
    group_size: int
    block_size: int
    dtype: str
    kv_dtype: str
    options: bool = False
    mla: bool = False
    token_scales: bool = False

    @classmethod
    def of(cls, place: Place, rows: str, form: Form) -> Key:
        dtypes = (named(form.dtype), named(form.kv_dtype))
        sizes = (form.head_dim, form.value_dim, place.group_size, place.block_size)
        return cls(place.arch, rows, *sizes, *dtypes, form.options, form.mla, form.token_scales)

    @property
    def form(self) -> Form:
        from kvproof_kernels.tiles import Form

        dtypes = getattr(torch, self.dtype), getattr(torch, self.kv_dtype)
        return Form(self.head_dim, self.value_dim, *dtypes, self.options, self.mla, self.token_scales)


@dataclass(frozen=True)
class Tuned:
    """One line of the table."""

    key: Key
    tile: Tile
    speedup: float


def tuned_tile(place: Place, rows: str, form: Form) -> Tile | None:
    """What was measured for exactly this, or None."""
    found = table().get(Key.of(place, rows, form))
    return None if found is None else found.tile


@functools.cache
def table() -> Mapping[Key, Tuned]:
    return read_table(TABLE)


def arch_of(device: torch.device) -> str:
    """The chip of a GPU as the compiler names it: "sm_90", "gfx942"."""
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def read_table(path: Path) -> dict[Key, Tuned]:
    """The lines of a table by what they were measured for.

    Raises:
        ValueError: a line lacks a field, has one too many or a tile that can't be, or comes twice; the message names
            the file and the line's place in the list.
    """
    found: dict[Key, Tuned] = {}
    for number, line in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["tiles"], start=1):
        try:
            entry = parse(line)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}: tile {number}: {error}") from None
        if entry.key in found:
            raise ValueError(f"{path.name}: tile {number}: {entry.key} has a tile already")
        found[entry.key] = entry
    return found


def parse(line: Mapping[str, Any]) -> Tuned:
    names = {field.name: field.default is MISSING for field in fields(Key)}
    names |= dict.fromkeys((*Tile._fields, "speedup"), True)
    if missing := sorted(name for name, needed in names.items() if needed and name not in line):
        raise ValueError(f"lacks {', '.join(missing)}")
    if unknown := sorted(set(line) - set(names)):
        raise ValueError(f"unknown field {', '.join(unknown)}")
    tile = Tile(*(line[name] for name in Tile._fields))
    check_tile(tile)
    if line["rows"] not in ("few", "many"):
        raise ValueError(f"rows {line['rows']!r}: few or many")
    for name in ("dtype", "kv_dtype"):
        if not isinstance(getattr(torch, line[name], None), torch.dtype):
            raise ValueError(f"{name} {line[name]!r}: torch does not know it")
    key = Key(**{name: value for name, value in line.items() if name in {field.name for field in fields(Key)}})
    return Tuned(key, tile, line["speedup"])


def check_tile(tile: Tile) -> None:
    for name in ("block_m", "block_n"):
        size = getattr(tile, name)
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name} {size}: a power of two from 16")
    if tile.num_warps not in WARPS or tile.num_stages < 1:
        raise ValueError(f"num_warps {tile.num_warps}, num_stages {tile.num_stages}: {WARPS}, and 1 or more")


def write_table(path: Path, entries: Iterable[Tuned]) -> None:
    ordered = sorted(entries, key=lambda entry: astuple(entry.key))
    empty = [] if ordered else ["# Empty: no device has been measured yet."]
    path.write_text("\n".join([HEAD, *empty, "tiles = [", *map(line_of, ordered), "]", ""]), encoding="utf-8")


def line_of(entry: Tuned) -> str:
    told = ", ".join(f"{name} = {in_toml(value)}" for name, value in entries_of(entry))
    return f"    {{ {told} }},"


def entries_of(entry: Tuned) -> Iterator[tuple[str, Any]]:
    """Fields that have their default are left out."""
    defaults = {field.name: field.default for field in fields(Key)}
    yield from ((name, value) for name, value in asdict(entry.key).items() if value != defaults[name])
    yield from entry.tile._asdict().items()
    yield "speedup", entry.speedup


def in_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
