"""What an operation does to the shadow pool: copies first, then writes; each looked at before it is made.

Waiting until contents differ finds an alias late, or never when both write the same token. So each write asks who else
can read the slot: nobody may, unless a prompt is written again where its own content stands already, as an allocator
does that shares a whole prompt and has its last token computed once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvproof_suites.allocator.shadow import Tag, place

if TYPE_CHECKING:
    from kvproof_suites.allocator.driver import Driver


class Handed(NamedTuple):
    """A slot given to a sequence, not written yet."""

    block: int
    law: str
    """C1 when the sequence held the block before: it had to be copied. A3 when the block was handed out as free."""
    in_prompt: bool


def make_copies(driver: Driver, seqs: Sequence[Hashable], copies: Iterable[Sequence[int]]) -> None:
    """Make the copies that an operation on ``seqs`` ordered, as a kernel would: at once, in no particular order."""
    pairs = [(int(source), int(destination)) for source, destination in copies]
    sources, destinations = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    blocks = range(driver.shadow.pool_blocks)
    in_pool = all(block in blocks for block in sources + destinations)
    driver.require("C2", in_pool, f"copies {pairs} name blocks outside the pool of {len(blocks)}", fatal=True)
    independent = len(set(destinations)) == len(pairs) and not set(destinations) & set(sources)
    driver.require("C2", independent, f"copies {pairs} depend on their order", fatal=True)
    if driver.null_block in sources + destinations:
        driver.report("A4", f"copies {pairs} touch the null block {driver.null_block}")
    driver.refresh()
    for destination in destinations:
        require_unread(driver, seqs, destination)
    for source, destination in pairs:
        driver.shadow.copy(source, destination)


def require_unread(driver: Driver, seqs: Sequence[Hashable], destination: int) -> None:
    """Nobody reads what a copy overwrites, but the one of ``seqs`` that it is made for."""
    owner = next((seq for seq in seqs if destination in driver.tables[seq]), None)
    for offset in range(driver.block_size):
        for other, position, _ in readers(driver, owner, destination, offset):
            where = place(position, destination, driver.block_size)
            driver.report("A3", f"a copy for {owner!r} overwrites {where} of {other!r}")


def hand_out(driver: Driver, seq: Hashable, first: int, held: Sequence[int], in_prompt: bool = False) -> None:
    """Queue the writes of ``seq`` from position ``first`` on; make them unless the run is one step late."""
    driver.refresh()
    record, table, size = driver.live[seq], driver.tables[seq], driver.block_size
    record.first_query = first
    for position in range(first, len(record.tags)):
        if position // size >= len(table):
            room = f"the table {table} ends at token {len(table) * size}"
            driver.report("A7", f"position {position} of {seq!r} has no slot: {room}", fatal=True)
        block = table[position // size]
        if block not in range(driver.shadow.pool_blocks):
            driver.report("A1", f"the table {table} of {seq!r} names a block outside the pool", fatal=True)
        if block == driver.null_block:
            driver.report("A4", f"position {position} of {seq!r} is to be written into the null block", fatal=True)
        record.pending[position] = Handed(block, "C1" if block in held else "A3", in_prompt)
    if not driver.late:
        land(driver, seq)


def land(driver: Driver, seq: Hashable) -> None:
    """Make the pending writes of ``seq``; each must still go where its table points."""
    record = driver.live.get(seq)
    if record is None or not record.pending:
        return
    size, table = driver.block_size, driver.tables[seq]
    for position, handed in record.pending.items():
        logical, offset = divmod(position, size)
        moved = logical >= len(table) or table[logical] != handed.block
        if moved:
            where = place(position, handed.block, size)
            driver.report("D5", f"{where} of {seq!r} was handed out, and moved before it was written", fatal=True)
        look_before_writing(driver, seq, position, handed)
        driver.shadow.write(handed.block, offset, record.tags[position])
    record.pending.clear()
    if not driver.can("commit"):
        driver.mark_committed(seq)


def look_before_writing(driver: Driver, seq: Hashable, position: int, handed: Handed) -> None:
    tag = driver.live[seq].tags[position]
    for other, theirs, standing in readers(driver, seq, handed.block, position % driver.block_size):
        rewritten = handed.in_prompt and theirs == position and standing == tag
        if not rewritten:
            where = place(position, handed.block, driver.block_size)
            driver.report(
                handed.law, f"writing {where} of {seq!r}, {tag}, overwrites position {theirs} of {other!r}, {standing}"
            )


def readers(driver: Driver, seq: Hashable, block: int, offset: int) -> Iterator[tuple[Hashable, int, Tag]]:
    """Live sequences besides ``seq`` that can read the slot: id, position and the tag they expect there."""
    for other, table in driver.tables.items():
        if other == seq or other not in driver.live or block not in table:
            continue
        position = table.index(block) * driver.block_size + offset
        tags = driver.live[other].tags
        if position < len(tags):
            yield other, position, tags[position]


def check_hit(driver: Driver, seq: Hashable, cached: int) -> None:
    """The ``cached`` leading tokens of ``seq`` are not computed again: they have to stand in its slots."""
    tags, size = driver.live[seq].tags, driver.block_size
    most = max(0, len(tags) - 1)
    found_all = f"allocate found {cached} of the {len(tags)} tokens of {seq!r} cached"
    driver.require("B3", cached <= most, f"{found_all}; a query needs at least one token to compute")
    driver.require("B2", 0 <= cached <= len(tags), found_all, fatal=True)
    driver.refresh()
    table = driver.tables[seq]
    for position in range(cached):
        want = tags[position]
        if position // size >= len(table):
            driver.report("A7", f"cached position {position} of {seq!r} is outside its table {table}", fatal=True)
        block = table[position // size]
        where = f"cached {place(position, block, size)} of {seq!r}, {want},"
        driver.require("B4", want in driver.committed, f"{where} is in no block that was complete and committed")
        found = driver.shadow.read(block, position % size)
        if found != want:
            judge_wrong_hit(driver, where, want, found)


def judge_wrong_hit(driver: Driver, where: str, want: Tag, found: Tag | None) -> None:
    if found is None:
        driver.report("B4", f"{where} was never written")
    elif found.prefix == want.prefix and found.key == want.key:
        driver.report("B9", f"{where} was computed before the cache was reset")
    elif found in driver.committed and len(found.prefix) == len(want.prefix):
        driver.report("B1", f"{where} reads as another prefix: {found}")
    driver.report("B2", f"{where} reads as {found or 'never written'}", fatal=True)
