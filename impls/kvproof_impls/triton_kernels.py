"""Our Triton kernels behind the contract; on CPU tensors they run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, Copies, KVPools, PagedBatch
from kvproof_kernels.block_copy import copy_blocks
from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.launch import is_interpreted
from kvproof_kernels.plan import PagedAttention, configuration_for
from kvproof_kernels.tiles import Configuration, rows_kind

if TYPE_CHECKING:
    from kvproof_kernels.resources import Resources


class TritonKernel:
    """Contract ``PagedKernel``: attention, cache write and block copy.

    ``batch_bitwise`` is missing below: how far a context is split depends on how long the others are.

    Args:
        device: where the tensors will be, for ``arithmetic``; None: a GPU if torch finds one.
        block_n: tokens a tile, a power of two from 16; None: what ``kvproof_kernels.tiles`` chooses.
        validate: read the block table back at a plan's first launch, and refuse ids outside the pool.
    """

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        [
            *(
                "fp8",
                "int8",
                "head_scales",
                "token_scales",
                "window",
                "softcap",
                "alibi",
                "sinks",
                "lse",
                "mla",
                "empty_rows",
                "out",
                "graph",
            ),
            *("cascade", "dirty_tail", "relabel_bitwise", "capacity_bitwise", "run_bitwise"),
        ]
    )

    def __init__(self, device: str | None = None, block_n: int | None = None, validate: bool = True) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.block_n = block_n
        self.validate = validate

    @property
    def interpreted(self) -> bool:
        """Whether the kernels run in Triton's interpreter, whose time says nothing about them."""
        return is_interpreted(self.device)

    def resources(self, spec: AttentionSpec, targets: Sequence[str]) -> list[Resources]:
        """What a decode step's kernel takes of each target that can run it, compiled ahead of time."""
        from kvproof_kernels.variants import attention_resources, is_supported

        form, kind = geometry(spec).form, rows_kind(spec.group_size)
        return [attention_resources(kind, form, target) for target in targets if is_supported(form, target)]

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if not spec.causal:
            return "attention that is not causal"
        unknown = [name for name in (spec.dtype, spec.kv_dtype or spec.dtype) if not hasattr(torch, name)]
        return f"dtype {unknown[0]}: torch does not know it" if unknown else geometry(spec).unsupported(self.device)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """P is rounded to the type in which it multiplies V; the interpreter truncates stores to bfloat16."""
        configuration = self._configuration(spec, num_pairs=1, device=self.device)
        truncated = self.interpreted and spec.dtype == "bfloat16"
        return {
            "p": str(configuration.value_type).removeprefix("torch."),
            "accumulator": "float32",
            "partials": "float32",
            "output": spec.dtype,
            "output_rounding": "toward_zero" if truncated else "nearest",
            "tf32": False,
            "prescaled_q": False,
            "weights_take_scale": configuration.token_scales,
            "tile": configuration.block_n,
        }

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Any = None) -> TritonLaunch:
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"the triton kernels do not support {reason}")
        device = batch.block_tables.device
        attend = PagedAttention(
            geometry(spec),
            batch.block_tables,
            batch.context_lens_host,
            batch.query_lens_host,
            common_prefix_blocks=batch.common_prefix_blocks,
            reuse=None if reuse is None else reuse.attend,
            validate=self.validate,
            configuration=self._configuration(spec, batch.max_query_len * spec.group_size, device),
        )
        return TritonLaunch(attend, spec.return_lse)

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """``key`` and ``value`` [num_tokens, num_kv_heads, dim] to the slots; -1 goes nowhere."""
        values, value_pool = (None, None) if spec.mla else (value, pools.value)
        key_scale, value_scale = scales(spec, pools)
        write_cache(
            key,
            values,
            pools.key,
            value_pool,
            slot_mapping,
            key_scale=key_scale,
            value_scale=value_scale,
            validate=self.validate,
        )

    def copy_blocks(self, pools: KVPools, copies: Copies) -> None:
        """(source, destination) blocks; ValueError where a destination is another pair's source or destination."""
        stored = (pools.key_scale, pools.value_scale)
        by_token = [scale if scale is not None and scale.dim() == 3 else None for scale in stored]
        copy_blocks(pools.key, pools.value, copies, key_scale=by_token[0], value_scale=by_token[1])

    def _configuration(self, spec: AttentionSpec, num_pairs: int, device: torch.device) -> Configuration:
        chosen = configuration_for(geometry(spec), num_pairs, device)
        return chosen if self.block_n is None else replace(chosen, block_n=self.block_n)


class TritonLaunch:
    """Contract ``Launch``."""

    def __init__(self, attend: PagedAttention, return_lse: bool) -> None:
        self.attend, self.return_lse = attend, return_lse

    def __call__(self, query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
        out, lse = self.attend(
            query, pools.key, pools.value, out, key_scale=pools.key_scale, value_scale=pools.value_scale
        )
        return (out, lse) if self.return_lse else out


def scales(spec: AttentionSpec, pools: KVPools) -> tuple[float | Tensor, float | Tensor]:
    """What codes of keys and of values are multiplied by: of the whole tensor, or as the pools hold them."""
    if spec.kv_scales == "tensor":
        return spec.k_scale, spec.v_scale
    if pools.key_scale is None or pools.value_scale is None:
        raise ValueError(f"pools.key_scale and pools.value_scale are missing: there is one scale a {spec.kv_scales}")
    return pools.key_scale, pools.value_scale


def geometry(spec: AttentionSpec) -> Geometry:
    """A spec in the kernels' words."""
    return Geometry(
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.value_dim_value,
        block_size=spec.block_size,
        dtype=getattr(torch, spec.dtype),
        kv_dtype=getattr(torch, spec.kv_dtype or spec.dtype),
        scale=spec.scale_value,
        window=spec.window,
        softcap=spec.softcap,
        alibi_slopes=spec.alibi_slopes,
        sinks=spec.sinks,
        key_scale=spec.k_scale,
        value_scale=spec.v_scale,
        kv_scales=spec.kv_scales,
        mla=spec.mla,
    )
