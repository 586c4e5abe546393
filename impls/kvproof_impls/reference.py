"""The oracle behind the contract: the allocator as it is, the attention in tiny shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvproof_reference.allocator import ReferenceAllocator
from kvproof_reference.attention import attend

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, Copies, KVPools, Launch, PagedBatch

__all__ = ["ReferenceAllocator", "ReferenceKernel"]


class ReferenceKernel:
    """Contract ``PagedKernel``: every sequence's keys and values are read slot by slot through its block table, and
    the float64 oracle attends to them as nested lists. Minutes for what takes a kernel microseconds."""

    pool_order = "NHD"
    max_context_len = 300
    features = frozenset(
        [
            "alibi",
            "batch_bitwise",
            "capacity_bitwise",
            "dirty_tail",
            "empty_rows",
            "lse",
            "mla",
            "out",
            "relabel_bitwise",
            "run_bitwise",
            "sinks",
            "softcap",
            "window",
        ]
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        for name, dtype in (("dtype", spec.dtype), ("kv_dtype", spec.kv_dtype or spec.dtype)):
            if dtype not in ("float16", "bfloat16", "float32", "float64"):
                return f"{name} {dtype!r}: reads unquantised pools only"
        return None if spec.kv_scales == "tensor" else f"scales a {spec.kv_scales}: they belong to quantised pools"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Everything in float64 until the output is rounded to the query's type. The accumulator stays at its default:
        an LSE in float32, as the contract has it, is not good to float64."""
        return {"p": "float64"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """Reads the tables now: a launch sees later contents of the pools, not of the tables."""
        places = [
            owned_slots(spec, table, length, query_len)
            for table, length, query_len in zip(
                batch.block_tables.tolist(), batch.context_lens_host, batch.query_lens_host, strict=True
            )
        ]

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            if out is None:
                out = query.new_empty(batch.num_tokens, spec.num_q_heads, spec.value_dim_value)
            lse = query.new_empty(out.shape[:2]).float()
            first = 0
            for place, query_len in zip(places, batch.query_lens_host, strict=True):
                rows = slice(first, first + query_len)
                outs, lses = attend_to_slots(spec, query[rows], pools, place)
                out[rows] = query.new_tensor(outs).view_as(out[rows])
                lse[rows] = lse.new_tensor(lses).view_as(lse[rows])
                first += query_len
            return (out, lse) if spec.return_lse else out

        return launch

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """Store ``key`` and ``value`` [num_tokens, num_kv_heads, dim] slot by slot; -1 is written nowhere. With
        ``spec.mla`` the keys alone, which hold the values."""
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                block, offset = divmod(slot, spec.block_size)
                pools.key[block, offset] = key[token] / spec.k_scale
                if not spec.mla:
                    pools.value[block, offset] = value[token] / spec.v_scale

    def copy_blocks(self, pools: KVPools, copies: Copies) -> None:
        """Copy whole blocks one by one: no destination is another pair's source."""
        for source, destination in copies:
            pools.key[destination] = pools.key[source]
            pools.value[destination] = pools.value[source]


def owned_slots(spec: AttentionSpec, table: list[int], context_len: int, query_len: int) -> list[tuple[int, int]]:
    """(block, offset) of each position that one of the last ``query_len`` positions may see."""
    reach = context_len if spec.window is None else query_len + spec.window - 1
    positions = range(max(0, context_len - reach), context_len)
    return [(table[position // spec.block_size], position % spec.block_size) for position in positions]


def attend_to_slots(spec: AttentionSpec, query: Tensor, pools: KVPools, place: list[tuple[int, int]]) -> Any:
    """``attend`` for ``query`` [query_len, num_q_heads, head_dim] over the keys and values stored at ``place``."""
    return attend(
        query.double().tolist(),
        [pools.key[block, offset].double().tolist() for block, offset in place],
        [pools.value[block, offset].double().tolist() for block, offset in place],
        scale=spec.scale_value,
        causal=spec.causal,
        window=spec.window,
        softcap=spec.softcap,
        alibi_slopes=spec.alibi_slopes,
        sinks=spec.sinks,
        k_scale=spec.k_scale,
        v_scale=spec.v_scale,
        value_dim=spec.value_dim_value,
    )
