"""Block tables as FlashInfer takes them: compressed rows, with the lengths on the host, where planning needs them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import KVPools, PagedBatch

WORKSPACE_BYTES = 128 * 2**20
"""What the wrappers' documentation recommends."""


@dataclass(frozen=True)
class PageIndices:
    """int32, all but ``indices`` on the host."""

    indptr: Tensor
    """[num_seqs + 1] where each sequence's pages begin in ``indices``."""
    indices: Tensor
    """[num_pages] physical blocks, only those that hold tokens."""
    last_page_len: Tensor
    """[num_seqs] tokens in each sequence's last page: 1 to block_size, and 0 where there is no page, since
    ``get_seq_lens`` (``page.py``) counts this number even then."""


def page_indices(
    batch: PagedBatch, block_size: int, first: Sequence[int] | None = None, until: Sequence[int] | None = None
) -> PageIndices:
    """The pages that hold tokens, gathered from the tables at places worked out on the host.

    Args:
        first: blocks of each sequence to leave out in front; None: none.
        until: blocks of each sequence after which nothing is taken; None: all of them.
    """
    import torch

    context = torch.tensor(batch.context_lens_host, dtype=torch.int64)
    skipped = torch.zeros_like(context) if first is None else torch.tensor(first, dtype=torch.int64)
    if until is not None:
        context = torch.minimum(context, block_size * torch.tensor(until, dtype=torch.int64))
    context = (context - block_size * skipped).clamp(min=0)
    num_pages = (context + block_size - 1) // block_size
    indptr = torch.tensor([0, *itertools.accumulate(num_pages.tolist())])
    row = torch.repeat_interleave(torch.arange(len(context)), num_pages)
    column = torch.arange(len(row)) - indptr[row] + skipped[row]
    device = batch.block_tables.device
    indices = batch.block_tables[row.to(device), column.to(device)]
    last_page_len = torch.where(context > 0, (context - 1) % block_size + 1, 0)
    return PageIndices(indptr.to(torch.int32), indices.to(torch.int32), last_page_len.to(torch.int32))


def query_start(batch: PagedBatch) -> Tensor:
    """[num_seqs + 1] int32 on the host."""
    import torch

    return torch.tensor([0, *itertools.accumulate(batch.query_lens_host)], dtype=torch.int32)


def pages_of(pools: KVPools, layout: str) -> tuple[Tensor, Tensor]:
    """The views of the contract, [blocks, block, heads, dim], in the order that the pools are stored in."""
    if layout == "HND":
        return pools.key.transpose(1, 2), pools.value.transpose(1, 2)
    return pools.key, pools.value


class Workspaces:
    """One a device, shared by all launches: they run one after the other. Zeros, as the first use wants them."""

    def __init__(self) -> None:
        self._made: dict[Any, Tensor] = {}

    def on(self, device: Any) -> Tensor:
        import torch

        if device not in self._made:
            self._made[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._made[device]
