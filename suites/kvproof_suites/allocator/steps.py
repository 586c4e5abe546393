"""A decode step in one call: one token for each sequence of a batch, and the step tensors that come back."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvproof_suites.allocator.demand import num_needed
from kvproof_suites.allocator.shadow import tags_of
from kvproof_suites.allocator.writes import hand_out, land, make_copies

if TYPE_CHECKING:
    from kvproof_suites.allocator.driver import Driver


STEP_TENSORS = ("block_tables", "context_lens", "query_start", "slot_mapping")


def append_step(driver: Driver, seqs: Sequence[Hashable], tokens: Sequence[int]) -> Any:
    """Hand out a slot for ``tokens[i]`` of ``seqs[i]``; the batch is judged (E1, E2, E4, B10) and returned."""
    for seq in seqs:
        land(driver, seq)
    held = {seq: driver.tables[seq] for seq in seqs}
    fits = num_needed(driver, dict.fromkeys(seqs, 1)) <= driver.num_free()
    batch = driver.operate("append_step", list(seqs), list(tokens), certain=fits)
    make_copies(driver, seqs, getattr(batch, "copies", ()))
    for seq, token in zip(seqs, tokens, strict=True):
        record = driver.live[seq]
        record.tags += tags_of(record.key, record.epoch, [token], record.prefix)
    for fault in faults(driver, seqs, batch):
        driver.report("E1", fault)
        driver.report("E2", fault)
    check_step_in_flight(driver, batch)
    check_common_prefix(driver, seqs, batch)
    for seq in seqs:
        hand_out(driver, seq, len(driver.live[seq].tags) - 1, held[seq])
    driver.settle()
    return batch


def commit_step(driver: Driver, seqs: Sequence[Hashable]) -> None:
    """All tokens of every sequence of the batch are written."""
    for seq in seqs:
        land(driver, seq)
    driver.operate("commit_step", list(seqs), certain=True)
    for seq in seqs:
        driver.mark_committed(seq)
    driver.settle()


def check_step_in_flight(driver: Driver, batch: Any) -> None:
    """The step before may still be copied to the device: what it was given has to be there (E4)."""
    if driver.step_in_flight is not None:
        before, contents = driver.step_in_flight
        now = tensors_of(before)
        changed = [name for name, was in contents.items() if now[name] != was]
        driver.require("E4", not changed, f"this step overwrote {', '.join(changed)} of the step before it")
    driver.step_in_flight = (batch, tensors_of(batch))


def tensors_of(batch: Any) -> dict[str, list[Any]]:
    return {name: getattr(batch, name).tolist() for name in STEP_TENSORS}


def faults(driver: Driver, seqs: Sequence[Hashable], batch: Any) -> Iterator[str]:
    """Where the step tensors differ from what the tables and the lengths say."""
    lengths = [len(driver.live[seq].tags) for seq in seqs]
    tables = [driver.tables[seq] for seq in seqs]
    slots = [slot(driver, table, length - 1) for table, length in zip(tables, lengths, strict=True)]
    wanted = {
        "context_lens": ("int32", lengths),
        "query_start": ("int32", list(range(len(seqs) + 1))),
        "slot_mapping": ("int64", slots),
    }
    for name, (dtype, want) in wanted.items():
        tensor = getattr(batch, name)
        if str(tensor.dtype) != f"torch.{dtype}":
            yield f"{name} is {tensor.dtype}; the contract has {dtype}"
        if tensor.tolist() != want:
            yield f"{name} of the step for {list(seqs)} is {tensor.tolist()}; it must be {want}"
    for name, host in (("context_lens_host", lengths), ("query_lens_host", [1] * len(seqs))):
        if list(getattr(batch, name)) != host:
            yield f"{name} of the step for {list(seqs)} is {getattr(batch, name)}; it must be {host}"
    yield from table_faults(seqs, tables, batch.block_tables)


def table_faults(seqs: Sequence[Hashable], tables: Sequence[list[int]], tensor: Any) -> Iterator[str]:
    """Rows of ``tensor`` [num_seqs, max_blocks] that do not begin with the table of their sequence."""
    if str(tensor.dtype) != "torch.int32":
        yield f"block_tables is {tensor.dtype}; the contract has int32"
    rows = tensor.tolist()
    if len(rows) != len(seqs):
        yield f"block_tables has {len(rows)} rows for the {len(seqs)} sequences {list(seqs)}"
    for seq, table, row in zip(seqs, tables, rows, strict=False):
        if row[: len(table)] != table:
            yield f"the row of {seq!r} in block_tables is {row}; it must begin with the table {table}"


def slot(driver: Driver, table: list[int], position: int) -> int | None:
    """None where the table ends before ``position``, which A7 reports."""
    logical, offset = divmod(position, driver.block_size)
    return table[logical] * driver.block_size + offset if logical < len(table) else None


def check_common_prefix(driver: Driver, seqs: Sequence[Hashable], batch: Any) -> None:
    """A cascade reads the first ``common_prefix_blocks`` columns once for all rows: all rows must agree on them."""
    columns = zip(*(driver.tables[seq] for seq in seqs), strict=False)
    shared = next((i for i, column in enumerate(columns) if len(set(column)) > 1), None)
    if shared is None:
        shared = min((len(driver.tables[seq]) for seq in seqs), default=0)
    said = getattr(batch, "common_prefix_blocks", 0)
    tables = [driver.tables[seq] for seq in seqs]
    what = f"common_prefix_blocks is {said}; the tables {tables} of {list(seqs)} agree on the first {shared}"
    driver.require("B10", 0 <= said <= shared, what)
