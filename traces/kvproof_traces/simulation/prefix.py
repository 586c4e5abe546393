"""The prefix cache, by hash ids: which blocks would be found, and which of them are still there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvproof_traces.request import Request
from kvproof_traces.simulation.entry import Entry

if TYPE_CHECKING:
    from kvproof_traces.simulation.paged import PagedPool


class Node:
    """The blocks of one hash id behind one prefix. They are owned together, also by a prompt that ends in one of them,
    and evicted one after the other, the last one first."""

    __slots__ = ("key", "num_blocks", "num_owners")

    def __init__(self, key: int | None, num_blocks: int, num_owners: int) -> None:
        self.key, self.num_blocks, self.num_owners = key, num_blocks, num_owners


class Held:
    """What an entry has to do with the cache."""

    __slots__ = (
        "keys",
        "next_key",
        "nodes",
        "num_blocks",
        "num_in_last",
        "num_keyed_blocks",
        "num_written_blocks",
        "remnant",
    )

    def __init__(self, keys: list[tuple[int, int]]) -> None:
        self.keys = keys
        """(key, blocks) of each hash id, as far as the prompt fills its blocks."""
        self.num_keyed_blocks = sum(num_blocks for _, num_blocks in keys)
        self.nodes: list[Node] = []
        self.num_blocks = 0
        """Of its own logical blocks, how many are in ``nodes``."""
        self.num_in_last = 0
        """Of these, in the last node."""
        self.next_key = 0
        """The first that it may have to publish."""
        self.num_written_blocks = 0
        """Complete and written by the end of the last step, while it is prefilled."""
        self.remnant: Node | None = None
        """After a preemption, blocks without a hash id, which it alone can find again."""


class PrefixCache:
    """Finds complete blocks that were written in an earlier step; what nobody owns is evicted, least recently used
    first, once blocks without content have run out."""

    def __init__(self, pool: PagedPool) -> None:
        self.pool, self.block_size = pool, pool.block_size
        self._nodes: dict[int, Node] = {}
        self._unowned: dict[Node, None] = {}
        self._num_unowned_blocks = 0

    def find(self, entry: Entry) -> tuple[list[Node], int, int]:
        """(nodes, their blocks that the prompt hits, blocks hit behind them in the entry's own remnant).

        At least one token is left to compute.
        """
        held = entry.held = entry.held or Held(list(_keys(entry, self.block_size)))
        context = entry.prompt + (entry.num_generated if entry.width == 1 else 0)
        limit, found = (context - 1) // self.block_size, 0
        nodes: list[Node] = []
        for key, num_blocks in held.keys:
            node = self._nodes.get(key)
            num_hit = min(num_blocks, node.num_blocks, limit - found) if node else 0
            if node is None or num_hit <= 0:
                return nodes, found, 0
            nodes.append(node)
            found += num_hit
            if num_hit < num_blocks:
                return nodes, found, 0
        num_own = min(held.remnant.num_blocks, limit - found) if held.remnant else 0
        return nodes, found, num_own

    def num_found_blocks(self, entry: Entry) -> int:
        """Blocks that an admission need not take from the free ones; ``acquire`` may follow at once."""
        nodes, found, _ = self.find(entry)
        return found - sum(node.num_blocks for node in nodes if not node.num_owners)

    def acquire(self, entry: Entry) -> int:
        """Own what is found; gives its blocks."""
        nodes, found, num_own = self.find(entry)
        held, pool = entry.held, self.pool
        assert held is not None
        for node in nodes:
            if not node.num_owners:
                self._forget_unowned(node, node.num_blocks)
                pool.free -= node.num_blocks
                pool.tokens += node.num_blocks * self.block_size
                pool.saved -= node.num_blocks
            node.num_owners += 1
        held.nodes, held.num_blocks, held.next_key = nodes, found, len(nodes)
        if nodes and nodes[-1].num_blocks < held.keys[len(nodes) - 1][1]:
            held.next_key -= 1  # evicted in part: to be completed
            held.num_in_last = found - held.next_key * held.keys[0][1]
        if num_own and held.remnant is not None:
            self._forget_unowned(held.remnant, num_own)
        held.remnant = None
        pool.free -= num_own
        pool.tokens += num_own * self.block_size
        pool.saved += found
        pool.reads += (found + num_own) * self.block_size
        held.num_written_blocks = found + num_own
        return found + num_own

    def commit(self, entry: Entry, num_written_blocks: int) -> bool:
        """Publish the hash ids whose blocks are all among the first ``num_written_blocks``; whether there were any."""
        held = entry.held
        assert held is not None
        before = held.num_blocks
        held.num_written_blocks = num_written_blocks
        last = len(held.keys)
        if num_written_blocks < held.num_keyed_blocks:
            last = num_written_blocks // held.keys[0][1]  # all ids before the last one fill as many blocks
        while held.next_key < last:
            key, num_blocks = held.keys[held.next_key]
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = Node(key, 0, 1)
                held.nodes.append(node)
                held.num_in_last = 0
            # One that it found whole, as far as it was there, it completes; a duplicate stays its own.
            if held.nodes and held.nodes[-1] is node and held.num_in_last == node.num_blocks:
                held.num_blocks += num_blocks - held.num_in_last
                node.num_blocks = num_blocks
            held.next_key += 1
        return held.num_blocks > before

    def release(self, entry: Entry, num_blocks: int, context: int | None) -> int:
        """Disown, the last blocks first; of ``num_blocks`` gives those that were in the cache.

        ``context``: tokens a branch, all written; None: no more than was by the end of the last step.
        """
        held = entry.held
        assert held is not None
        num_cached, num_full = held.num_blocks, held.num_written_blocks
        if context is not None:
            num_full = context // self.block_size
            if entry.width > 1:  # nobody finds again what several branches have generated
                num_full = entry.prompt // self.block_size
                num_tails = entry.width if context > entry.prompt else 1
                self.keep(Node(None, num_blocks - num_full - (num_tails if context % self.block_size else 0), 0))
        held.remnant = Node(None, max(0, num_full - held.num_keyed_blocks), 0)
        self.keep(held.remnant)
        self._disown(held)
        return num_cached

    def _disown(self, held: Held) -> None:
        pool = self.pool
        for node in reversed(held.nodes):
            node.num_owners -= 1
            if not node.num_owners:
                pool.free += node.num_blocks
                pool.tokens -= node.num_blocks * self.block_size
                pool.saved += node.num_blocks
                self.keep(node)
        pool.saved -= held.num_blocks
        held.nodes, held.num_blocks = [], 0

    def forget_remnant(self, entry: Entry) -> None:
        """The host has what it alone could find."""
        held = entry.held
        if held is not None and held.remnant is not None and held.remnant.num_blocks:
            self._forget_unowned(held.remnant, held.remnant.num_blocks)

    def settle(self) -> None:
        """Evict what was handed out."""
        while self._num_unowned_blocks > self.pool.free:
            node = next(iter(self._unowned))
            num_evicted = min(node.num_blocks, self._num_unowned_blocks - self.pool.free)
            node.num_blocks -= num_evicted
            self._num_unowned_blocks -= num_evicted
            if not node.num_blocks:
                del self._unowned[node]
                if node.key is not None:
                    del self._nodes[node.key]

    def keep(self, node: Node) -> None:
        """Its blocks were given up just now, with their content; without a key nobody asks for it."""
        if node.num_blocks > 0:
            self._unowned[node] = None
            self._num_unowned_blocks += node.num_blocks

    def _forget_unowned(self, node: Node, num_blocks: int) -> None:
        """These are owned again; of a remnant the rest stays, which nobody will ask for."""
        self._num_unowned_blocks -= num_blocks
        if node.key is None:
            node.num_blocks -= num_blocks
        if node.key is not None or not node.num_blocks:
            del self._unowned[node]


def _keys(entry: Entry, block_size: int) -> Iterator[tuple[int, int]]:
    """(chained key, blocks) of each hash id, or of each block where ids are smaller."""
    request, ids = entry.request, entry.request.hash_ids
    if not ids:
        return
    num_left, size = entry.prompt // block_size, request.hash_block_size
    if size % block_size and block_size % size:
        raise ValueError(_no_multiple(request, block_size))
    per_id, per_block = max(size // block_size, 1), max(block_size // size, 1)
    values = ids if per_block == 1 else [ids[at : at + per_block] for at in range(0, len(ids), per_block)]
    key = hash((entry.key, size))
    for value in values:
        if num_left <= 0:
            return
        key = hash((key, value))
        yield key, min(num_left, per_id)
        num_left -= per_id


def _no_multiple(request: Request, block_size: int) -> str:
    return (
        f"Pool.block_size: {block_size} and the {request.hash_block_size} tokens a hash id of request "
        f"{request.request_id} don't divide each other; give a block size that does"
    )
