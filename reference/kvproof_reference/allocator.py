"""The block allocator that all others are measured against: plain, checked, and meant to be read in one sitting.

A pool of ``num_blocks`` blocks of ``block_size`` slots; a sequence holds the blocks of its table, a block counts the
tables that hold it. Two queues keep the unreferenced blocks: ``empty`` (nothing worth keeping, handed out first) and
``cached`` (findable by its contents, handed out last, least recently used first).

Prefix cache. A block is *findable* once it is complete and committed. The hash names a candidate; a hit needs equal
tokens, an equal key and the very parent block matched before it, so a collision may cost a hit but can't give a wrong
one. Equal contents are findable once: ``commit`` swaps a duplicate for the block that is findable already. So every
findable block has a findable parent, who holds a block holds its parent, and since tables are released tail first, a
child is always older in ``cached`` than its parent: eviction never cuts a chain in the middle.

Source: Kwon et al., PagedAttention (SOSP 2023), section 4; prefix caching by chained hash as in vLLM.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from kvproof_reference.blocks import ROOT_HASH, Block, SequenceState, chain_hash
from kvproof_reference.invariants import INVARIANTS


class ReferenceAllocator:
    """Block allocator with ``fork``, ``commit``, ``truncate`` and prefix caching.

    A failure leaves everything as it was: ``MemoryError`` when blocks run out, ``KeyError`` for an unknown or duplicate
    sequence, ``ValueError`` for a number out of range, ``TypeError`` for a token that is no whole number.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, number in (("num_blocks", num_blocks), ("block_size", block_size)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self.blocks = [Block(block) for block in range(num_blocks)]
        self.empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.findable: dict[int, int] = {}  # hash to block; parents come before their children
        self.sequences: dict[Hashable, SequenceState] = {}

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Hashable = ()) -> int:
        """Admit ``seq``; return how many leading tokens were found cached. No tokens: an empty table."""
        self._refuse_duplicate(seq)
        prompt = [operator.index(token) for token in tokens]
        hits = self._lookup(prompt, key)
        # A hit block that nobody references counts as free until it is taken: it can't serve as a fresh block too.
        num_hits_queued = sum(block in self.cached for block in hits)
        num_fresh = self._num_blocks_for(len(prompt)) - len(hits)
        self._require(num_fresh, self.num_free_blocks() - num_hits_queued, f"allocate {seq!r}")
        for block in hits:
            self._reference(block)
        self.sequences[seq] = SequenceState(prompt, hits + self._take(num_fresh), key, len(hits))
        return len(hits) * self.block_size

    def append(self, seq: Hashable, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Make slots for the next tokens; return the (source, destination) block to copy before they are written.

        Copy-on-write is lazy: the first writer into a shared, partly filled last block leaves it to the others.
        """
        state = self._state(seq)
        new = [operator.index(token) for token in tokens]
        if not new:
            return []
        writes_into_last = len(state.tokens) % self.block_size != 0
        is_shared = writes_into_last and self.blocks[state.table[-1]].num_references > 1
        num_grown = self._num_blocks_for(len(state.tokens) + len(new)) - len(state.table)
        self._require(num_grown + is_shared, self.num_free_blocks(), f"append to {seq!r}")
        copies = []
        if is_shared:
            source, (destination,) = state.table[-1], self._take(1)
            self._release(source)
            state.table[-1] = destination
            copies = [(source, destination)]
        elif writes_into_last:
            # After a truncate the last block may still be findable as the complete one it was. Its only owner is about
            # to overwrite it: forgotten, not copied, so that rolling back never costs a block that nobody had before.
            self._forget_with_descendants(state.table[-1])
        state.table += self._take(num_grown)
        state.tokens += new
        return copies

    def fork(self, parent: Hashable, child: Hashable) -> list[tuple[int, int]]:
        """Share all blocks of ``parent`` with the new sequence ``child``; nothing is copied before a write."""
        state = self._state(parent)
        self._refuse_duplicate(child)
        for block in state.table:
            self._reference(block)
        self.sequences[child] = state.copy()
        return []

    def commit(self, seq: Hashable) -> None:
        """All tokens handed out to ``seq`` are written: its complete blocks become findable.

        Rewrites the table where a block with the same contents is findable already.
        """
        state = self._state(seq)
        while state.publishes and state.num_findable < len(state.tokens) // self.block_size:
            if not self._publish(state, state.num_findable):
                return
            state.num_findable += 1

    def free(self, seq: Hashable) -> None:
        """Give back the blocks of ``seq``, the tail first; findable ones stay findable until they are handed out."""
        for block in reversed(self._state(seq).table):
            self._release(block)
        del self.sequences[seq]

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens. A shared block that is cut is copied when it is next written."""
        state = self._state(seq)
        if not 0 <= num_tokens <= len(state.tokens):
            raise ValueError(f"truncate {seq!r} to {num_tokens} tokens: it has {len(state.tokens)}")
        num_kept = self._num_blocks_for(num_tokens)
        for block in reversed(state.table[num_kept:]):
            self._release(block)
        del state.table[num_kept:], state.tokens[num_tokens:]
        state.num_findable = min(state.num_findable, num_tokens // self.block_size)

    def block_table(self, seq: Hashable) -> list[int]:
        """Physical block of each logical block of ``seq``, a copy."""
        return list(self._state(seq).table)

    def slot_index(self, seq: Hashable, position: int) -> int:
        """Slot of the token at ``position``: physical block · block_size + offset."""
        state = self._state(seq)
        if not 0 <= position < len(state.tokens):
            raise ValueError(f"position {position} of {seq!r}: it has {len(state.tokens)} tokens")
        return state.table[position // self.block_size] * self.block_size + position % self.block_size

    def num_free_blocks(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        return len(self.empty) + len(self.cached)

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a new sequence of ``num_tokens`` tokens, none of them cached, would be admitted now."""
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        return self._num_blocks_for(num_tokens) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: Hashable = ()) -> int:
        """How many leading tokens ``allocate`` would find cached now. Reserves nothing, renews nothing."""
        return len(self._lookup([operator.index(token) for token in tokens], key)) * self.block_size

    def reset_prefix_cache(self) -> None:
        """Forget every findable block, referenced ones too; sequences that live now never publish again."""
        for block in list(self.findable.values()):
            self._forget(block)
        for state in self.sequences.values():
            state.publishes, state.num_findable = False, 0

    def check(self) -> list[str]:
        """Every invariant that is broken now, as "name: what is wrong"; empty when all hold."""
        return [f"{invariant.name}: {fault}" for invariant in INVARIANTS for fault in invariant.faults(self)]

    def _state(self, seq: Hashable) -> SequenceState:
        if seq not in self.sequences:
            raise KeyError(f"unknown sequence {seq!r}; {len(self.sequences)} are live")
        return self.sequences[seq]

    def _refuse_duplicate(self, seq: Hashable) -> None:
        if seq in self.sequences:
            raise KeyError(f"sequence {seq!r} is live already; free it first or choose another id")

    def _require(self, num_needed: int, num_available: int, what: str) -> None:
        if num_needed > num_available:
            raise MemoryError(f"{what}: needs {num_needed} blocks, {num_available} of {self.num_blocks} are free")

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _lookup(self, tokens: list[int], key: Hashable) -> list[int]:
        """Blocks of the longest cached prefix that leaves at least the last token, whose query must be computed."""
        hits: list[int] = []
        digest = ROOT_HASH
        hash(key)  # an unhashable key is refused here, before anything has changed
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            chunk = tuple(tokens[start : start + self.block_size])
            digest = chain_hash(digest, chunk, key, self.block_size)
            found = self._find(digest, hits[-1] if hits else None, chunk, key)
            if found is None:
                break
            hits.append(found)
        return hits

    def _find(self, digest: int, parent: int | None, tokens: tuple[int, ...], key: Hashable) -> int | None:
        candidate = self.findable.get(digest)
        if candidate is None:
            return None
        block = self.blocks[candidate]
        return candidate if (block.parent, block.tokens, block.key) == (parent, tokens, key) else None

    def _publish(self, state: SequenceState, index: int) -> bool:
        """Make logical block ``index`` findable, or hold the one that is; False when other contents have its hash."""
        chunk = tuple(state.tokens[index * self.block_size : (index + 1) * self.block_size])
        parent = state.table[index - 1] if index else None
        parent_hash = ROOT_HASH if parent is None else self.blocks[parent].hash
        assert parent_hash is not None, "blocks before num_findable are findable"
        digest = chain_hash(parent_hash, chunk, state.key, self.block_size)
        own, twin = state.table[index], self._find(digest, parent, chunk, state.key)
        if twin is None:
            if digest in self.findable:
                return False
            self.findable[digest] = own
            self.blocks[own].publish(digest, parent, chunk, state.key)
        elif twin != own:
            self._reference(twin)
            state.table[index] = twin
            self._release(own)
        return True

    def _take(self, num: int) -> list[int]:
        """Hand out ``num`` blocks; the caller has made sure that they exist."""
        taken = []
        for _ in range(num):
            block, _ = (self.empty or self.cached).popitem(last=False)
            self._forget(block)
            self.blocks[block].num_references = 1
            taken.append(block)
        return taken

    def _reference(self, block: int) -> None:
        self.cached.pop(block, None)
        self.blocks[block].num_references += 1

    def _release(self, block: int) -> None:
        self.blocks[block].num_references -= 1
        if self.blocks[block].num_references == 0:
            (self.empty if self.blocks[block].hash is None else self.cached)[block] = None

    def _forget(self, block: int) -> None:
        """Make ``block`` unfindable; nothing may be left that is findable only behind it."""
        digest = self.blocks[block].hash
        if digest is None:
            return
        del self.findable[digest]
        self.blocks[block].unpublish()
        if block in self.cached:
            del self.cached[block]
            self.empty[block] = None

    def _forget_with_descendants(self, block: int) -> None:
        doomed = [block]
        for other in self.findable.values():  # parents come first, so that one pass meets whole chains
            if self.blocks[other].parent in doomed:
                doomed.append(other)
        for other in doomed:
            self._forget(other)
