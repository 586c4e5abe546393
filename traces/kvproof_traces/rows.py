"""The sequences of a decode batch: in the shape in which a batched step takes them, and by when a block is full."""

from __future__ import annotations

import numpy as np

from kvproof_traces.entry import Seq
from kvproof_traces.token_ids import Tokens


class Rows:
    """Sequences keep their row while the batch is stable, and the last one fills the gap that one leaves: an allocator
    that keeps step tensors has to write one row anew, not all behind it."""

    def __init__(self, max_num_seqs: int) -> None:
        self.seqs: list[Seq] = []
        self._origins = np.zeros(max_num_seqs, np.int32)
        self._rows: dict[Seq, int] = {}

    def put(self, seq: Seq, origin: int) -> None:
        """Add ``seq``, or change its ``origin``: its token of step n has the id ``origin + n``."""
        row = self._rows.get(seq)
        if row is None:
            row = self._rows[seq] = len(self.seqs)
            self.seqs.append(seq)
        self._origins[row] = origin

    def remove(self, seq: Seq) -> None:
        """Take ``seq`` out, where it is in."""
        row = self._rows.pop(seq, None)
        if row is None:
            return
        last = self.seqs.pop()
        if last != seq:
            self.seqs[row] = last
            self._rows[last] = row
            self._origins[row] = self._origins[len(self.seqs)]

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._rows

    def origin(self, seq: Seq) -> int:
        return int(self._origins[self._rows[seq]])

    def tokens(self, num_steps: int) -> Tokens:
        """This step's token of each row, a new array: the allocator may keep it."""
        tokens: Tokens = self._origins[: len(self.seqs)] + np.int32(num_steps)
        return tokens


class BlockEnds:
    """Which sequences fill a block in a step, found without looking at the others: all grow by a token a step, so those
    that fill one together do so for ever."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._together: list[dict[Seq, None]] = [{} for _ in range(block_size)]
        self._place: dict[Seq, int] = {}

    def put(self, seq: Seq, lead: int) -> None:
        """``seq`` has ``lead + n`` tokens after step n."""
        self.remove(seq)
        place = self._place[seq] = lead % self.block_size
        self._together[place][seq] = None

    def remove(self, seq: Seq) -> None:
        """Forget ``seq``, where it is known."""
        place = self._place.pop(seq, None)
        if place is not None:
            del self._together[place][seq]

    def at(self, num_steps: int) -> dict[Seq, None]:
        """The sequences whose last block is full after that many steps."""
        return self._together[-num_steps % self.block_size]
