"""A kernel from a plain function: the shortest way in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch


class FunctionKernel:
    """Wraps ``attend`` as a kernel: nothing is planned, every launch calls the function."""

    pool_order = "NHD"

    def __init__(
        self,
        attend: Callable[..., Tensor],
        features: Set[str] = frozenset(),
        unsupported: Callable[[AttentionSpec], str | None] | None = None,
        arithmetic: Mapping[str, Any] | None = None,
    ) -> None:
        self.attend = attend
        self.features = features
        self._unsupported = unsupported
        self._arithmetic = dict(arithmetic or {})

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.kv_scales != "tensor" or (spec.k_scale, spec.v_scale) != (1.0, 1.0):
            return "scales of keys and values: a function is given none"
        return self._unsupported(spec) if self._unsupported else None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return self._arithmetic

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Tensor:
            return self.attend(
                query,
                pools.key,
                pools.value,
                batch.block_tables,
                batch.context_lens,
                batch.query_start,
                scale=spec.scale_value,
            )

        return launch


def from_function(attend: Callable[..., Tensor], **options: Any) -> FunctionKernel:
    """A kernel from ``attend(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale)``.

    Args:
        attend: query [num_tokens, num_q_heads, head_dim] and pools [num_blocks, block_size, num_kv_heads, head_dim] to
            the output [num_tokens, num_q_heads, head_dim]; sequence i's query rows are
            ``query_start[i]:query_start[i + 1]``, the last positions of its context.
        options: ``features``, ``unsupported`` (a function of the spec) and ``arithmetic``, as in the contract.
    """
    return FunctionKernel(attend, **options)
