"""Our block allocator: the design of PagedAttention (Kwon et al., SOSP 2023, sections 4.2 to 4.5), on arrays and with
its hot path compiled by Numba.

Python keeps what is opaque, sequence ids and keys, and raises the errors. What is done a token or a block is compiled.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kvproof_impls.contract import Copies
from kvproof_impls.counters import Counters
from kvproof_impls.paged import entries
from kvproof_impls.paged.fields import NO_FIELDS, Item
from kvproof_impls.paged.layout import EVICTION, NONE, make_state
from kvproof_impls.paged.prefix_cache import PrefixCache
from kvproof_impls.paged.sequences import NO_ROW, SHORT
from kvproof_impls.paged.tokens import as_tokens
from kvproof_impls.paged_sizes import LARGEST, share, whole


class SingleCalls(PrefixCache):
    """The contract's single calls; ``PagedAllocator`` adds the batched step and swapping.

    For one thread at a time, as a scheduler is one: calls from several need a lock around each. No other Python thread
    and no signal handler runs inside compiled code.

    Args:
        num_blocks: blocks that sequences can own.
        block_size: tokens a block.
        num_reserved: blocks behind them that are never handed out; the first of them is ``null_block``.
        eviction: "lru", "fifo", "leaf" or "all", see ``layout.EVICTION``.
        watermark: share of the blocks that an admission must leave free while another sequence lives.
        prefix_caching: without it no token is kept and nothing is ever found.
        seed: of the hash of names; None draws one. It decides how fast a look-up is, never what it finds.
        max_num_seqs, max_model_len: room made beforehand; within it no array moves, past it all of them grow.

    Raises:
        ValueError: a number out of range, or an unknown ``eviction``.
    """

    _num_visible = 0
    """Positions, where there is a window."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_reserved: int = 0,
        eviction: str = "lru",
        watermark: float = 0.0,
        prefix_caching: bool = True,
        seed: int | None = None,
        max_num_seqs: int = 64,
        max_model_len: int = 1024,
    ) -> None:
        self.num_blocks, self.block_size = whole("num_blocks", num_blocks, 1), whole("block_size", block_size, 1)
        num_reserved = whole("num_reserved", num_reserved, largest=LARGEST - self.num_blocks)
        if eviction not in EVICTION:
            raise ValueError(f"eviction: {eviction!r} is unknown; known are {', '.join(EVICTION)}")
        self.eviction = eviction
        self.pool_blocks = self.num_blocks + num_reserved
        if num_reserved:
            self.null_block = self.num_blocks
        self.counters = Counters()
        self._num_spare = int(share("watermark", watermark) * self.num_blocks)
        seed = secrets.randbits(64) if seed is None else seed % 2**64
        state = make_state(
            self.num_blocks, self.block_size, num_reserved, EVICTION[eviction], self._num_visible, prefix_caching, seed
        )
        self._preempted: set[Hashable] = set()
        self._copy = np.zeros(2, np.int32)
        num_seqs, num_tokens = whole("max_num_seqs", max_num_seqs), whole("max_model_len", max_model_len)
        super().__init__(state, max(1, num_seqs), max(1, -(-num_tokens // self.block_size)))

    def allocate(
        self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = (), items: Sequence[Item] = ()
    ) -> int:
        """Admit ``seq``; return how many leading tokens were found cached, at most ``len(tokens) - 1``.

        ``items``: (position, number of tokens, identity) of what stands behind placeholder tokens, such as images.

        Raises:
            KeyError: ``seq`` is live already.
            ValueError: a token that is not an int32, or an item outside the tokens.
            MemoryError: too few free blocks.
        """
        self._refuse_known(seq)
        ids = as_tokens(tokens)
        self._tidy_fields()
        fields = self._fields_of(items, ids.size) if items else NO_FIELDS
        num_cached = self._admit(seq, ids, fields, self._fields.root(key), finds=True) * self.block_size
        self.counters.admitted(ids.size, num_cached, again=seq in self._preempted)
        self._preempted.discard(seq)
        return num_cached

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Make slots for ``tokens``; return the (source, destination) blocks to copy before they are written.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: a token that is not an int32.
            MemoryError: too few free blocks for the growth and the copy.
        """
        row = self._rows[seq]
        num_copies = self._call(entries.append, row, as_tokens(tokens), self._copy)
        return self._copies(num_copies, seq)

    def reserve(self, seq: Hashable, num_tokens: int) -> Copies:
        """Make room for ``num_tokens`` more without adding any; ``truncate`` gives it back.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: ``num_tokens`` is negative.
            MemoryError: too few free blocks.
        """
        row = self._rows[seq]
        num_tokens = whole("num_tokens to reserve", num_tokens, largest=None)
        num_tokens = min(num_tokens, (self.num_blocks + 1) * self.block_size)  # no pool has room for more
        return self._copies(self._call(entries.reserve, row, num_tokens, self._copy), seq)

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns. Raises KeyError when it is neither live nor preempted."""
        if seq not in self._rows:
            self._preempted.remove(seq)
            return
        row = self._rows.pop(seq)
        entries.release(self._places, row)
        self._free_rows.append(row)

    def preempt(self, seq: Hashable) -> None:
        """As ``free``, of a sequence that will be admitted again under its id: what is found then is no hit.

        Raises KeyError when ``seq`` is unknown.
        """
        if seq not in self._rows:
            raise KeyError(seq)
        self.free(seq)
        self._preempted.add(seq)
        self.counters.num_preemptions += 1

    def fork(self, parent: Hashable, child: Hashable) -> Copies:
        """Let ``child`` share every block of ``parent``; copies nothing until one of them writes.

        Raises:
            KeyError: ``parent`` is unknown, or ``child`` is live already.
        """
        row = self._rows[parent]
        self._refuse_known(child)
        if not self._free_rows:
            self._add_rows()
        entries.fork(self._places, row, self._free_rows[-1])
        self._rows[child] = self._free_rows.pop()
        self._preempted.discard(child)
        return ()

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens and no more blocks than they need.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: ``num_tokens`` is negative or more than the sequence has.
        """
        row, num_tokens = self._rows[seq], whole("num_tokens to keep", num_tokens, largest=None)
        length = int(self._state.sequences[row]["length"])
        if num_tokens > length:
            raise ValueError(f"can't cut {seq!r} to {num_tokens} tokens: it has {length}")
        self._cut_fields(self._state.sequences[row], row, num_tokens)
        entries.truncate(self._places, row, num_tokens)

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """Physical block of each logical block. Raises KeyError when ``seq`` is unknown."""
        row = self._rows[seq]
        return self._state.tables[row, : self._state.sequences[row]["num_blocks"]].tolist()  # type: ignore[no-any-return]

    def num_free_blocks(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        return int(self._num_blank[0]) + int(self._num_evictable[0])

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a new sequence of ``num_tokens`` fits when nothing of it is cached. Raises ValueError below 0."""
        num_needed = -(-whole("num_tokens to allocate", num_tokens, largest=None) // self.block_size)
        return num_needed + self._spare() <= self.num_free_blocks() and num_needed * self.block_size <= LARGEST

    @property
    def num_evicted_blocks(self) -> int:
        """Cached blocks whose content was given up for room."""
        return int(self._state.pool["num_evicted"][0])

    def bookkeeping_bytes(self) -> int:
        """Of the pool: what is kept a block and, for the prefix cache, a token slot."""
        return sum(array.nbytes for array in self._state[:6])

    def _admit(self, seq: Hashable, tokens: Any, fields: Any, root: int, finds: bool) -> int:
        """``finds`` what is cached, as a new sequence does; one that comes back from the host is under no watermark."""
        row, num_spare = self._free_rows[-1] if self._free_rows else NONE, self._spare() if finds else 0
        num_hits = self._call(entries.allocate, row, tokens, fields, root, num_spare, finds)
        if num_hits == NO_ROW:
            self._add_rows()
            return self._admit(seq, tokens, fields, root, finds)
        if num_hits == SHORT:
            raise MemoryError(
                f"{seq!r} needs {-(-tokens.size // self.block_size)} blocks for {tokens.size} tokens, "
                f"{self.num_free_blocks()} of {self.num_blocks} free, {num_spare} to be left"
            )
        self._rows[seq] = self._free_rows.pop()
        return num_hits

    def _spare(self) -> int:
        return self._num_spare if self._rows else 0

    def _copies(self, num_copies: int, seq: Hashable) -> Copies:
        if num_copies == SHORT:
            raise MemoryError(
                f"{seq!r} does not fit: {self.num_free_blocks()} of {self.num_blocks} blocks free; nothing was changed"
            )
        if num_copies == 0:
            return ()
        self.counters.num_copies += 1
        return ((int(self._copy[0]), int(self._copy[1])),)

    def _refuse_known(self, seq: Hashable) -> None:
        if seq in self._rows:
            raise KeyError(f"{seq!r} is allocated already")
