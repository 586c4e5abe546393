"""A right kernel that takes the hint of a common prefix: that part by the first row's table, the tail by each row's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from selftest.wrong.right_kernel import Partial
from selftest.wrong.right_split_kernel import RightSplitKernel


class RightCascadeKernel(RightSplitKernel):
    features = RightSplitKernel.features | {"cascade"}
    prefix = 0
    """Tokens of the prefix, of the batch that is being run."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        self.prefix = self.prefix_len(spec, batch)
        return super().attend_row(spec, batch, row, query, pools)

    def prefix_len(self, spec: AttentionSpec, batch: PagedBatch) -> int:
        return batch.common_prefix_blocks * spec.block_size

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        shared = min(self.prefix, context_len)
        right = super().slots(spec, batch, row, context_len)
        return [*super().slots(spec, batch, 0, shared), *right[shared:]]

    def cuts(self, num_keys: int) -> list[slice]:
        end = min(self.prefix, num_keys)
        return [slice(0, end), slice(end, num_keys)]
