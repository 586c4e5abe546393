"""How many bytes an attention launch has to move, and how many its programs ask for under a plan.

What *must* be moved is each live token's K and V once a key head, whatever the block size; its query rows, its output,
and the table entries that name its blocks. What a *plan* asks for is more: a program reads the tokens of its work item
again when the query rows of a sequence fill several tiles, and a context that is split writes partial results, which
the combine kernel reads. The first divided by a measured time is a bandwidth that can be compared with the roof; the
second says how much the caches have to serve (Williams et al., Roofline, CACM 2009, on compulsory traffic).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from kvproof_kernels.work import ITEM

FLOAT = INDEX = 4
"""Bytes of a partial result, an LSE, a scale; of a table entry and a length."""


@dataclass(frozen=True)
class Shape:
    """What of a model decides how many bytes a token has."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    block_size: int
    element_bytes: int
    """Of query and output."""
    kv_element_bytes: int
    shared_kv: bool = False
    """MLA: the values are a part of the keys, so that nothing is read for them."""
    token_scales: bool = False
    """A float32 scale for each row of K and of V."""
    return_lse: bool = False

    @property
    def kv_token_bytes(self) -> int:
        """K and V of one token, all key heads, without scales."""
        return self.num_kv_heads * self.kv_element_bytes * (self.head_dim + (0 if self.shared_kv else self.value_dim))

    @property
    def scale_token_bytes(self) -> int:
        return FLOAT * self.num_kv_heads * (1 if self.shared_kv else 2) if self.token_scales else 0


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch, the combine kernel's included."""

    keys_and_values: int = 0
    scales: int = 0
    query: int = 0
    output: int = 0
    """With the LSE where it is returned."""
    block_table: int = 0
    work_items: int = 0
    """The plan itself, as each program reads it: items, positions, places of partial results."""
    partials_written: int = 0
    partials_read: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def compulsory(
    shape: Shape,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    window: int | None = None,
    common_prefix: int = 0,
) -> Traffic:
    """What any kernel must move for a batch of causal attention.

    Args:
        shape: of the model.
        context_lens: tokens of each sequence, this step's own included.
        query_lens: query rows of each sequence, the last positions of its context.
        window: visible keys, the query's own included; None: all.
        common_prefix: leading tokens whose blocks all sequences share, counted once.
    """
    spans = [visible(n, rows, window) for n, rows in zip(context_lens, query_lens, strict=True)]
    shared = _shared(spans, common_prefix)
    tokens = shared + sum(max(0, end - max(start, shared)) for start, end in spans)
    rows = sum(query_lens)
    return Traffic(
        keys_and_values=tokens * shape.kv_token_bytes,
        scales=tokens * shape.scale_token_bytes,
        query=rows * shape.num_q_heads * shape.head_dim * shape.element_bytes,
        output=rows * shape.num_q_heads * _output_bytes(shape),
        block_table=INDEX * sum(num_blocks(start, end, shape.block_size) for start, end in spans),
    )


def planned(shape: Shape, items: Iterable[Sequence[int]], partial_start: Sequence[int], block_m: int) -> Traffic:
    """What the programs of a plan ask for, those that merge partial results included.

    Args:
        shape: of the model.
        items: rows of ``work.ITEM``; one without rows is no work.
        partial_start: as in ``work.Work``; the merge runs where there are partial results.
        block_m: heads of a group that one program takes at most; K and V are read again for the others.
    """
    total = _merged(shape, partial_start)
    programs = shape.num_kv_heads * -(-shape.num_q_heads // (shape.num_kv_heads * block_m))
    for _, _, num_rows, start, end, partial in items:
        if num_rows:
            total = _sum(total, _asked(shape, num_rows, start, end, partial >= 0, programs))
    return total


def _asked(shape: Shape, num_rows: int, start: int, end: int, split: bool, programs: int) -> Traffic:
    """By the ``programs`` of one item, with the position and the place among partial results of each row."""
    tokens = max(0, end - start) * programs // shape.num_kv_heads
    rows = num_rows * shape.num_q_heads
    return Traffic(
        keys_and_values=tokens * shape.kv_token_bytes,
        scales=tokens * shape.scale_token_bytes,
        query=rows * shape.head_dim * shape.element_bytes,
        output=0 if split else rows * _output_bytes(shape),
        block_table=INDEX * programs * num_blocks(start, end, shape.block_size),
        work_items=INDEX * programs * (len(ITEM) + num_rows * (2 if split else 1)),
        partials_written=rows * _partial_bytes(shape) if split else 0,
    )


def _merged(shape: Shape, partial_start: Sequence[int]) -> Traffic:
    """By the programs that merge, one a row and head; a row without partial results is left as it is."""
    counts = [end - start for start, end in pairwise(partial_start)]
    if not any(counts):
        return Traffic()
    return Traffic(
        partials_read=sum(counts) * shape.num_q_heads * _partial_bytes(shape),
        output=sum(count > 0 for count in counts) * shape.num_q_heads * _output_bytes(shape),
        work_items=INDEX * 2 * len(counts) * shape.num_q_heads,
    )


def visible(context_len: int, query_len: int, window: int | None = None) -> tuple[int, int]:
    """The tokens [start, end) that any of the last ``query_len`` positions of a context sees; empty without rows."""
    if query_len == 0 or context_len == 0:
        return 0, 0
    first = max(0, context_len - query_len)
    return (0 if window is None else max(0, first - window + 1)), context_len


def num_blocks(start: int, end: int, block_size: int) -> int:
    """Blocks that the tokens [start, end) lie in."""
    return -(-end // block_size) - start // block_size if end > start else 0


def _shared(spans: Sequence[tuple[int, int]], common_prefix: int) -> int:
    """Tokens of the common prefix that are counted once: all of it, or none where a window hides a part of it."""
    return common_prefix if spans and all(start == 0 and end >= common_prefix for start, end in spans) else 0


def _output_bytes(shape: Shape) -> int:
    """Of one row and head."""
    return shape.value_dim * shape.element_bytes + (FLOAT if shape.return_lse else 0)


def _partial_bytes(shape: Shape) -> int:
    """Of one row and head: a float32 output and its log-sum-exp."""
    return FLOAT * (shape.value_dim + 1)


def _sum(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(*(getattr(one, field.name) + getattr(other, field.name) for field in fields(Traffic)))
