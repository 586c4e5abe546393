"""The batched step, on top of the single calls: the batch of the step before is remembered, only changes looked up."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from kvproof_impls.contract import Copies
from kvproof_impls.paged import entries
from kvproof_impls.paged.layout import State
from kvproof_impls.paged.sequences import SHORT
from kvproof_impls.paged.swapping import Swapping
from kvproof_impls.paged.tokens import as_tokens

if TYPE_CHECKING:
    from kvproof_impls.contract import PagedBatch
    from kvproof_impls.paged.buffers import StepBuffers


class Gone:
    """Equals nothing, not even what equals everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


GONE = Gone()
"""In the remembered batch, where a sequence was that has left."""


class PagedAllocator(Swapping):
    """Blocks on demand, shared by reference count, copied when a shared one is about to be written.

    The blocks of a freed sequence age from its end, so that no block outlives its cached parent. Arguments: see
    ``SingleCalls``, and ``num_host_blocks`` of ``Swapping``.
    """

    _batch: list[Any]
    _gaps: list[int]
    _given: Any
    _buffers: list[StepBuffers]
    _made_anew = Swapping._made_anew | {"_batch", "_gaps", "_given", "_buffers", "_batch_rows", "_rows_array"}

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        """Append ``tokens[i]`` to ``seqs[i]`` for a whole decode batch, or for none of it; ``copies`` of the batch are
        to be made before its slots are written. Its tensors are buffers, to be read only: the call after the next fills
        them anew, and where ``max_num_seqs`` or ``max_model_len`` is exceeded others take their place.

        Raises:
            KeyError: a sequence is unknown, or comes twice.
            ValueError: not one token a sequence, or a token that is not an int32.
            MemoryError: too few free blocks for all rows; the text names the rows that need one.
        """
        ids = as_tokens(tokens)
        if len(seqs) != ids.size:
            raise ValueError(f"append_step takes one token a sequence: {len(seqs)} sequences, {ids.size} tokens")
        self._require_batch(seqs)
        buffers = self._buffers or self._make_buffers()
        current = buffers[0]
        num_copies = entries.append_step(current.places, ids)
        if num_copies < 0:
            if num_copies == SHORT:
                raise MemoryError(self._told_shortage(seqs))
            self._widen()
            return self.append_step(seqs, tokens)
        buffers.reverse()
        self.counters.num_copies += num_copies
        return current.batch(ids.size, num_copies)

    def commit_step(self, seqs: Sequence[Hashable]) -> None:
        """``commit`` of each of ``seqs``, or, with a KeyError, of none: when one is unknown or comes twice."""
        self._require_batch(seqs)
        entries.commit_step((self._buffers or self._make_buffers())[0].places, len(seqs))

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns, on the host too. Raises KeyError when it is unknown."""
        self._leave(seq)  # first: no interruption may leave a row in the batch whose sequence is gone
        super().free(seq)

    def swap_out(self, seq: Hashable) -> Copies:
        """Move ``seq`` to the host, see ``Swapping.swap_out``."""
        self._leave(seq)
        return super().swap_out(seq)

    def _require_batch(self, seqs: Sequence[Hashable]) -> None:
        """The rows of the batch are those of ``seqs``; where it differs from the batch before, they are looked up."""
        if seqs is self._given:
            return  # the same tuple, which can't have changed
        asked = seqs if seqs.__class__ is list else list(seqs)
        if self._batch == asked:
            self._given = seqs if seqs.__class__ is tuple else None
            return
        self._given = None
        before, gaps = self._batch, sorted(self._gaps)
        self._batch, self._gaps = [GONE], []  # whatever fails from here on, no row is taken for known
        changed = self._changed(asked, before, gaps)
        buffers, rows = self._buffers or self._make_buffers(), self._batch_rows
        if len(asked) > len(rows):
            raise KeyError(self._told_wrong(asked))
        for index in changed:
            rows[index] = self._rows[asked[index]]
        if entries.any_twice(buffers[0].places, len(asked)):
            raise KeyError(self._told_wrong(asked))
        self._batch = asked.copy()

    def _changed(self, asked: list[Hashable], before: list[Any], gaps: list[int]) -> Iterable[int]:
        """Rows to look up: where a sequence has left and at the end, if that explains the difference, else all.

        An engine moves the sequences behind a gap up, or fills it with the last one or with a new one.
        """
        num_kept = len(before) - len(gaps)
        if gaps and before[gaps[0] + 1 : gaps[0] + 2] == asked[gaps[0] : gaps[0] + 1]:
            for gap in reversed(gaps):
                del before[gap]
                self._rows_array[gap:-1] = self._rows_array[gap + 1 :]
            gaps = []
        gaps = [gap for gap in gaps if gap < min(num_kept, len(asked))]
        for gap in gaps:
            before[gap] = asked[gap]
        if before[:num_kept] != asked[:num_kept]:
            return range(len(asked))
        return chain(gaps, range(num_kept, len(asked)))

    def _leave(self, seq: Hashable) -> None:
        self._given = None
        with suppress(ValueError):
            gap = self._batch.index(seq)
            self._batch[gap] = GONE
            self._gaps.append(gap)

    def _reshape(self, state: State) -> None:
        self._batch, self._gaps, self._given, self._buffers = [GONE], [], None, []
        super()._reshape(state)
        self._batch_rows = array("i", bytes(4 * len(state.sequences)))  # quicker than NumPy for a number at a time
        self._rows_array = np.frombuffer(self._batch_rows, np.int32)

    def _replace(self, state: State) -> None:
        super()._replace(state)
        for one in self._buffers:
            one.places[: len(self._places)] = self._places

    def _make_buffers(self) -> list[StepBuffers]:
        from kvproof_impls.paged.buffers import StepBuffers  # here, so that an allocator alone does not import torch

        self._buffers = [StepBuffers(self._state, self._rows_array) for _ in range(2)]
        return self._buffers

    def _told_shortage(self, seqs: Sequence[Hashable]) -> str:
        records = self._state.sequences[self._rows_array[: len(seqs)]]
        full = records["length"] == records["num_blocks"] * self.block_size
        growing = [seq for seq, needs in zip(seqs, full, strict=True) if needs]
        return (
            f"the step needs {len(growing)} blocks for {growing}, and copies of shared last blocks, "
            f"{self.num_free_blocks()} of {self.num_blocks} free; no row was appended"
        )

    def _told_wrong(self, seqs: Sequence[Hashable]) -> str:
        twice = [seq for seq, count in Counter(seqs).items() if count > 1]
        if twice:
            return f"{twice} more than once in a batch"
        return f"{[seq for seq in seqs if seq not in self._rows]} unknown"
