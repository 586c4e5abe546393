"""What our allocator's ``append_step`` needs besides single appends: the blocks of a whole batch counted beforehand,
and the step tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, repeat, takewhile

import torch

from kvproof_impls.contract import Copies, PagedBatch


def num_copies(tails: Iterable[int], references: Sequence[int]) -> int:
    """Copies that writers into the blocks ``tails``, one entry a writer, will cause: the last owner of a block writes
    in place, when all its owners write."""
    return sum(writers - (writers == references[block]) for block, writers in Counter(tails).items())


def step_tensors(
    tables: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int, copies: Copies
) -> PagedBatch:
    """The batch of a decode step, one query row a sequence; ``lengths`` count the token of this step.

    Tensors are new ones, so that an earlier step's, perhaps in flight, never change. Table rows are padded with 0.
    """
    width = max(map(len, tables), default=0)
    rows = list(chain.from_iterable(chain(table, repeat(0, width - len(table))) for table in tables))
    slots = [
        table[(length - 1) // block_size] * block_size + (length - 1) % block_size
        for table, length in zip(tables, lengths, strict=True)
    ]
    return PagedBatch(
        block_tables=torch.tensor(rows, dtype=torch.int32).view(len(tables), width),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        query_start=torch.arange(len(tables) + 1, dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        context_lens_host=tuple(lengths),
        query_lens_host=(1,) * len(tables),
        common_prefix_blocks=num_common(tables),
        copies=copies,
    )


def num_common(tables: Sequence[Sequence[int]]) -> int:
    """Leading blocks that all tables name, found by comparing ids: a reference count can't tell who else holds one."""
    columns = zip(*tables, strict=False)
    return sum(1 for _ in takewhile(lambda column: column.count(column[0]) == len(column), columns))


def refuse_bad_rows(seqs: Sequence[Hashable], tokens: Sequence[int]) -> None:
    """Raises ValueError unless there is one token a row, KeyError when a sequence comes twice."""
    if len(seqs) != len(tokens):
        raise ValueError(f"append_step takes one token a sequence: {len(seqs)} sequences, {len(tokens)} tokens")
    if len(set(seqs)) != len(seqs):
        twice = [seq for seq, count in Counter(seqs).items() if count > 1]
        raise KeyError(f"append_step: {twice} more than once in a batch")
