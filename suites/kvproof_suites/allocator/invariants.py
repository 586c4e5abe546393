"""What holds after every operation, as a mapping from each law to its checks. A check yields a text for each fault."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from kvproof_suites.allocator.shadow import Tag, place

if TYPE_CHECKING:
    from kvproof_suites.allocator.driver import Driver

Check = Callable[["Driver"], Iterator[str]]


def conservation(driver: Driver) -> Iterator[str]:
    """Free blocks are those that no live table names."""
    owned = driver.owned()
    free, expected = driver.num_free(), driver.allocator.num_blocks - len(owned)
    if free != expected:
        yield (
            f"num_free_blocks() is {free}; {driver.allocator.num_blocks} blocks less the {len(owned)} in live tables "
            f"{driver.tables} are {expected}"
        )


def ids_in_range(driver: Driver) -> Iterator[str]:
    pool = driver.allocator.pool_blocks
    for seq, table in driver.tables.items():
        if wrong := [block for block in table if not 0 <= block < pool]:
            yield f"the table {table} of {seq!r} names {wrong}, outside range({pool})"


def bounded_waste(driver: Driver) -> Iterator[str]:
    """No sequence holds a block more than its tokens and its look-ahead need, unless it says that it reserves."""
    for seq, table in driver.tables.items():
        needed = driver.blocks_for(driver.live[seq].num_covered)
        if len(table) > needed and not reserves_ahead(driver):
            yield f"{seq!r} holds the blocks {table} for {driver.live[seq].num_covered} tokens, which need {needed}"


def one_place(driver: Driver) -> Iterator[str]:
    """A block holds one stretch of positions, whoever shares it."""
    places: dict[int, tuple[object, int]] = {}
    for seq, table in driver.tables.items():
        for logical, block in enumerate(table):
            if block == driver.null_block:
                continue
            other, at = places.setdefault(block, (seq, logical))
            if at != logical:
                yield f"block {block} is logical block {logical} of {seq!r} and logical block {at} of {other!r}"


def room(driver: Driver) -> Iterator[str]:
    """Every token, and every one that was reserved, has a slot."""
    for seq, table in driver.tables.items():
        covered = driver.live[seq].num_covered
        if len(table) * driver.block_size < covered:
            yield f"the table {table} of {seq!r} has {len(table) * driver.block_size} slots for {covered} tokens"


def read_back(driver: Driver) -> Iterator[str]:
    """Each sequence reads its own history through its table, as far as it has been written."""
    size, slots = driver.block_size, driver.shadow.slots
    for seq, record in driver.live.items():
        length = min(record.pending, default=len(record.tags))
        first = driver.first_seen(seq)
        for start, block in zip(range(0, length, size), driver.tables[seq], strict=False):
            skipped = max(0, first - start)
            want = record.tags[start + skipped : min(start + size, length)]
            found = slots[block * size + skipped : block * size + skipped + len(want)]
            if found != want:
                offset = next((i for i, tag in enumerate(found) if tag != want[i]), 0)
                where = place(start + skipped + offset, block, size)
                reads = found[offset] if found else None
                yield f"{where} of {seq!r} must read {want[offset]}; it reads {reads or 'never written'}"


def found_is_committed(driver: Driver) -> Iterator[str]:
    for promise, tags in promises(driver):
        for tag in never_committed(driver, tags):
            if not from_before_reset(driver, tag):
                yield f"{promise}; {tag} is in no block that was complete and committed"


def found_is_held(driver: Driver) -> Iterator[str]:
    for promise, tags in promises(driver):
        for tag in driver.shadow.missing(tags):
            if not from_before_reset(driver, tag):
                yield f"{promise}; no slot of the pool holds {tag}"


def found_is_recent(driver: Driver) -> Iterator[str]:
    for promise, tags in promises(driver):
        for tag in never_committed(driver, tags):
            if from_before_reset(driver, tag):
                yield f"{promise}; {tag} was committed before the cache was reset, and never since"


class Promise(NamedTuple):
    """Spelled out only where it is broken: a history of real prompts has a million that are kept."""

    query: list[int]
    key: tuple[Hashable, ...]
    found: int

    def __str__(self) -> str:
        return f"cached_prefix({self.query}, {self.key!r}) is {self.found}"


def promises(driver: Driver) -> Iterator[tuple[Promise, list[Tag]]]:
    """What ``cached_prefix`` says of the prefixes that were seen, as the tags that must then be in the pool."""
    if not driver.can("cached_prefix"):
        return
    for (key, tokens), tags in driver.known.items():
        query = [*tokens, 0]  # one more token, so that a cap that leaves one to compute doesn't hide the last block
        found = driver.ask("cached_prefix", query, key)
        yield Promise(query, key, found), tags[: max(0, found)]


def never_committed(driver: Driver, tags: list[Tag]) -> list[Tag]:
    return [] if driver.committed.issuperset(tags) else [tag for tag in tags if tag not in driver.committed]


def from_before_reset(driver: Driver, tag: Tag) -> bool:
    return any(tag._replace(epoch=epoch) in driver.committed for epoch in range(driver.epoch))


def reserves_ahead(driver: Driver) -> bool:
    """Declared by allocators whose tables are as long as the longest sequence may become."""
    return getattr(driver.allocator, "reserves", None) is not None


def reserved_stay_reserved(driver: Driver) -> Iterator[str]:
    """No more blocks than are usable ever stand in tables; the null block only where nothing is seen any more."""
    named = driver.seen - {driver.null_block}
    if len(named) > driver.allocator.num_blocks:
        yield f"{len(named)} blocks have been handed out, {sorted(named)}; {driver.allocator.num_blocks} are usable"
    for seq, table in driver.tables.items():
        first = driver.first_seen(seq)
        for logical, block in enumerate(table):
            if block == driver.null_block and (logical + 1) * driver.block_size > first:
                yield f"{seq!r} sees position {first} on, and its logical block {logical} is the null block"


INVARIANTS: Mapping[str, tuple[Check, ...]] = {
    "A1": (conservation, ids_in_range, bounded_waste),
    "A3": (one_place,),
    "A4": (reserved_stay_reserved,),
    "A7": (room,),
    "B4": (found_is_committed,),
    "B5": (found_is_held,),
    "B9": (found_is_recent,),
    "C1": (read_back,),
    "D1": (read_back,),
    "G11": (read_back,),
}


def checks_of(laws: Set[str]) -> dict[Check, str]:
    """Each check once, in the order of the laws, with the first law that it stands for."""
    found: dict[Check, str] = {}
    for law in sorted(laws & set(INVARIANTS)):
        for check in INVARIANTS[law]:
            found.setdefault(check, law)
    return found
