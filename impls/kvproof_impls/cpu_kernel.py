"""Our compiled CPU kernel behind the contract: it reads the blocks in place, through the block table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, Copies, KVPools, Launch, PagedBatch
from kvproof_kernels.cpu import TILE, PagedAttention, copy_blocks, write_rows

DTYPES = ("float16", "bfloat16", "float32")


class CpuKernel:
    """Contract ``PagedKernel``: decode, prefill and any mixture of the two by one compiled kernel."""

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        [
            "window",
            "softcap",
            "alibi",
            "sinks",
            "lse",
            "mla",
            "empty_rows",
            "out",
            "dirty_tail",
            "relabel_bitwise",
            "capacity_bitwise",
            "batch_bitwise",
            "run_bitwise",
        ]
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        for name, dtype in (("dtype", spec.dtype), ("kv_dtype", spec.kv_dtype or spec.dtype)):
            if dtype not in DTYPES:
                return f"{name} {dtype}: {', '.join(DTYPES)} only"
        return None if spec.kv_scales == "tensor" else f"scales a {spec.kv_scales}: k_scale and v_scale only"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """All of it float32; weights are never rounded to the query's type."""
        return {
            "p": "float32",
            "accumulator": "float32",
            "partials": "float32",
            "output": spec.dtype,
            "output_rounding": "nearest",
            "tf32": False,
            "prescaled_q": False,
            "tile": TILE,
        }

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """Lays out the work by the lengths; tables are read at the launch. There is nothing of ``reuse`` to keep."""
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"the cpu kernel does not support {reason}")
        attend = PagedAttention(
            batch.block_tables,
            batch.context_lens_host,
            batch.query_lens_host,
            block_size=spec.block_size,
            **geometry(spec),
        )

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            out, lse = attend(query, pools.key, pools.value, out)
            return (out, lse) if spec.return_lse else out

        return launch

    def dense(self, spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One decode row a sequence without paging: the whole context of a sequence is one block."""
        num_seqs, context_len = key.shape[:2]
        tables = torch.arange(num_seqs, dtype=torch.int32)[:, None]
        attend = PagedAttention(
            tables, [context_len] * num_seqs, [1] * num_seqs, block_size=context_len, **geometry(spec)
        )
        return attend(query, key, value)[0]

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """``key`` and ``value`` [num_tokens, num_kv_heads, dim] to the slots; -1 goes nowhere. With ``spec.mla`` the
        keys hold the values, and are all that is written."""
        parts = [("key", key, pools.key, spec.k_scale), ("value", value, pools.value, spec.v_scale)]
        for name, rows, pool, scale in parts[: 1 if spec.mla else 2]:
            stored = rows if scale == 1 else rows.float() / scale
            write_rows(name, stored.to(pool.dtype), pool, slot_mapping)

    def copy_blocks(self, pools: KVPools, copies: Copies) -> None:
        """(source, destination) blocks; ValueError where a destination is another pair's source or destination."""
        copy_blocks(pools.key, copies)
        if pools.value.data_ptr() != pools.key.data_ptr():  # of latent attention: the keys hold the values
            copy_blocks(pools.value, copies)


def geometry(spec: AttentionSpec) -> dict[str, Any]:
    """What a spec says besides its block size and types, in the kernel's words."""
    return {
        "num_q_heads": spec.num_q_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "value_dim": spec.value_dim_value,
        "scale": spec.scale_value * spec.k_scale,
        "value_scale": spec.v_scale,
        "causal": spec.causal,
        "window": spec.window,
        "softcap": spec.softcap,
        "alibi_slopes": spec.alibi_slopes,
        "sinks": spec.sinks,
    }
