"""Block tables as a replay leaves them behind, and the small file that carries them to a kernel's benchmark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 26
MAX_SLOTS = 2**31 - 1
"""Slots of a pool, which a slot mapping numbers with 32 bits in most engines."""


class TablesError(ValueError):
    """A file of block tables that can't be used. The text is ``file: field: what is wrong; what to do``."""

    def __init__(self, file: str | Path, field: str, what: str) -> None:
        super().__init__(f"{file}: {field}: {what}; write it anew from a replay")
        self.file, self.field, self.what = str(file), field, what


@dataclass(frozen=True)
class BlockTables:
    """The live sequences of one moment. Blocks may be shared between sequences, never within one."""

    block_size: int
    """Tokens a block."""
    num_blocks: int
    """Blocks of the whole pool: entries lie in ``range(num_blocks)``."""
    block_tables: tuple[tuple[int, ...], ...]
    """Physical block of each logical block, a row a sequence; a reservation may be longer than the context needs."""
    context_lens: tuple[int, ...]
    """Tokens of each sequence."""


FIELDS = tuple(BlockTables.__dataclass_fields__)


def write_tables(path: str | Path, tables: BlockTables) -> None:
    """Write ``tables`` as JSON, checked first.

    Raises:
        TablesError: they break a rule that ``read_tables`` would refuse.
    """
    data = json.loads(json.dumps(asdict(tables)))
    _check(path, data)
    Path(path).write_text(json.dumps(data) + "\n", encoding="utf-8")


def read_tables(path: str | Path) -> BlockTables:
    """The tables that ``write_tables`` wrote.

    Raises:
        TablesError: not JSON, a field missing, unknown or of another kind, an entry outside the pool, a table too
            short for its context, a block twice in one sequence, or a pool or file that is too large; names the field
            and the row.
        OSError: no such file.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TablesError(path, "file", f"is longer than {MAX_BYTES:,} bytes")
        data = json.loads(text.decode("utf-8-sig"))
    except TablesError:
        raise
    except (ValueError, RecursionError) as error:
        raise TablesError(path, "file", f"is not JSON ({error})") from None
    _check(path, data)
    return BlockTables(
        data["block_size"],
        data["num_blocks"],
        tuple(map(tuple, data["block_tables"])),
        tuple(data["context_lens"]),
    )


def _check(path: str | Path, data: Any) -> None:
    if type(data) is not dict:
        raise TablesError(path, "file", f"is a JSON {type(data).__name__}, not an object")
    if wrong := sorted(set(FIELDS) ^ set(data)):
        raise TablesError(path, wrong[0], "is missing" if wrong[0] in FIELDS else "is an unknown field")
    for field in ("block_size", "num_blocks"):
        if not _whole(data[field], 1):
            raise TablesError(path, field, f"{data[field]!r} is not a number of at least 1")
    if data["block_size"] * data["num_blocks"] > MAX_SLOTS:
        raise TablesError(path, "num_blocks", f"makes a pool of more than {MAX_SLOTS:,} slots")
    for field in ("block_tables", "context_lens"):
        if type(data[field]) is not list:
            raise TablesError(path, field, "is not a list")
    rows, lens = data["block_tables"], data["context_lens"]
    if len(rows) != len(lens):
        raise TablesError(path, "context_lens", f"has {len(lens)} entries for {len(rows)} block tables")
    for index, (row, length) in enumerate(zip(rows, lens, strict=True)):
        if not _whole(length, 1):
            raise TablesError(path, f"context_lens[{index}]", f"{length!r} is not a number of at least 1")
        _check_row(path, f"block_tables[{index}]", row, length, data)


def _check_row(path: str | Path, field: str, row: Any, length: int, data: dict[str, Any]) -> None:
    if type(row) is not list:
        raise TablesError(path, field, "is not a list")
    for column, block in enumerate(row):
        if not _whole(block, 0) or block >= data["num_blocks"]:
            raise TablesError(path, f"{field}[{column}]", f"{block!r} is not in range({data['num_blocks']})")
    if len(row) * data["block_size"] < length:
        raise TablesError(path, field, f"{len(row)} blocks of {data['block_size']} can't hold {length} tokens")
    if len(set(row)) < len(row):
        (twice, _), *_ = Counter(row).most_common(1)
        raise TablesError(path, field, f"block {twice} appears twice in one sequence")


def _whole(value: Any, at_least: int) -> bool:
    return type(value) is int and value >= at_least
