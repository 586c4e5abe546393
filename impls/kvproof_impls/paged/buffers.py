"""The step tensors: allocated once, filled in place, two sets in turn so that a step in flight keeps its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch

from kvproof_impls.contract import Copies, PagedBatch
from kvproof_impls.paged.layout import State
from kvproof_impls.paged.places import HELD, Buffers, places_of


class StepBuffers:
    """One set of step tensors, in pinned memory where there is a CUDA device, and the batch that shows them.

    The batch object is the same from step to step while the number of rows and of common blocks stays, and so are the
    addresses, for a captured graph to read: who keeps a batch longer than until the call after the next sees a later
    step in it, in ``context_lens_host`` too. They are to be read only, since a row is brought up to date and not
    written anew.
    """

    def __init__(self, state: State, rows: Any) -> None:
        num_seqs, max_blocks = state.tables.shape
        pinned = torch.cuda.is_available()

        def tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=pinned)

        self.block_tables = tensor((num_seqs, max_blocks), torch.int32)
        self.slot_mapping = tensor((num_seqs,), torch.int64)
        self.context_lens = tensor((num_seqs,), torch.int32)
        self.query_start = torch.arange(num_seqs + 1, out=tensor((num_seqs + 1,), torch.int32))
        self.arrays = Buffers(
            rows,
            self.block_tables.numpy(),
            self.slot_mapping.numpy(),
            self.context_lens.numpy(),
            np.zeros(num_seqs, HELD),
            np.zeros(2 * num_seqs, np.int32),
            np.zeros(2, np.int64),
        )
        self.places = places_of(state, self.arrays)
        self._batch: PagedBatch | None = None

    def batch(self, num_seqs: int, num_copies: int) -> PagedBatch:
        """What the last step wrote for its ``num_seqs`` rows."""
        common = int(self.arrays.common[0])
        if num_copies:
            pairs = self.arrays.copies[: 2 * num_copies].reshape(-1, 2).tolist()
            return self._view(num_seqs, common, [tuple(pair) for pair in pairs])
        last = self._batch
        if last is None or last.num_seqs != num_seqs or last.common_prefix_blocks != common:
            self._batch = last = self._view(num_seqs, common, ())
        return last

    def _view(self, num_seqs: int, common: int, copies: Copies) -> PagedBatch:
        return PagedBatch(
            block_tables=self.block_tables[:num_seqs],
            context_lens=self.context_lens[:num_seqs],
            query_start=self.query_start[: num_seqs + 1],
            slot_mapping=self.slot_mapping[:num_seqs],
            context_lens_host=HostLens(self.arrays.context_lens[:num_seqs]),
            query_lens_host=(1,) * num_seqs,
            common_prefix_blocks=common,
            copies=copies,
        )


class HostLens(Sequence[int]):
    """The context lengths as Python numbers, made when they are asked for: most steps never are. A view, as the tensors
    are; it has no hash, since it changes with them."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lengths: Any) -> None:
        self._lengths = lengths

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return tuple(self._lengths[index].tolist()) if isinstance(index, slice) else int(self._lengths[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._lengths.tolist())

    def __len__(self) -> int:
        return len(self._lengths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))
