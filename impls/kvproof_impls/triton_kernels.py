"""Our Triton kernels behind the contract; on CPU tensors they run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, Copies, KVPools, Launch, PagedBatch
from kvproof_kernels.block_copy import copy_blocks
from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.decode import paged_decode
from kvproof_kernels.launch import DTYPES, MAX_HEAD_DIM, Configuration, configure, is_interpreted
from kvproof_kernels.prefill import paged_prefill
from kvproof_kernels.validation import HEAD_DIM_STEP, MAX_BLOCK_SIZE

if TYPE_CHECKING:
    from kvproof_kernels.resources import Resources

DTYPE_NAMES = tuple(str(dtype).removeprefix("torch.") for dtype in DTYPES)


class TritonKernel:
    """Contract ``PagedKernel``: paged decode and prefill, cache write and block copy.

    A batch of nothing but single query tokens goes to the decode kernel, any other batch to the prefill kernel in one
    launch. That is why ``batch_bitwise`` is missing below: one prompt in the batch moves a decode row to the other.

    Args:
        device: where the tensors will be, for ``arithmetic``; None: a GPU if torch finds one.
        block_n: tokens a tile, a power of two from 16; None: what ``kvproof_kernels.launch`` chooses.
    """

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        ["lse", "empty_rows", "out", "dirty_tail", "relabel_bitwise", "capacity_bitwise", "run_bitwise"]
    )

    def __init__(self, device: str | None = None, block_n: int | None = None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.block_n = block_n

    @property
    def interpreted(self) -> bool:
        """Whether the kernels run in Triton's interpreter, whose time says nothing about them."""
        return is_interpreted(self.device)

    def resources(self, spec: AttentionSpec, targets: Sequence[str]) -> list[Resources]:
        """Registers, spills and shared memory of the decode kernel, compiled ahead of time for each target."""
        from kvproof_kernels.resources import compile_resources

        options: dict[str, Any] = {"head_dim": max(spec.head_dim, spec.value_dim_value), "dtype": spec.dtype}
        options |= {"group_size": spec.group_size, "block_size": spec.block_size}
        return [compile_resources("decode", target, **options) for target in targets]

    def unsupported(self, spec: AttentionSpec) -> str | None:
        reasons = {
            f"dtype {spec.dtype}: {', '.join(DTYPE_NAMES)} only": spec.dtype not in DTYPE_NAMES,
            f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}": spec.kv_dtype not in (None, spec.dtype),
            "not causal": not spec.causal,
            "sliding window": spec.window is not None,
            "soft cap": spec.softcap is not None,
            "ALiBi": spec.alibi_slopes is not None,
            "attention sinks": spec.sinks is not None,
            "k_scale and v_scale other than 1": (spec.k_scale, spec.v_scale) != (1.0, 1.0),
            f"scales a {spec.kv_scales}": spec.kv_scales != "tensor",
            "latent attention (mla)": spec.mla,
            f"block_size {spec.block_size}: at most {MAX_BLOCK_SIZE}": spec.block_size > MAX_BLOCK_SIZE,
        }
        for name, dim in (("head_dim", spec.head_dim), ("value_dim", spec.value_dim_value)):
            wrong = dim % HEAD_DIM_STEP != 0 or dim > MAX_HEAD_DIM
            reasons[f"{name} {dim}: a multiple of {HEAD_DIM_STEP}, at most {MAX_HEAD_DIM}"] = wrong
        return next((reason for reason, applies in reasons.items() if applies), None)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """P is rounded to the type of V before P·V, in which the interpreter widens bfloat16; it truncates stores."""
        widened = is_interpreted(self.device) and spec.dtype == "bfloat16"
        return {
            "p": "float32" if widened else spec.dtype,
            "accumulator": "float32",
            "output": spec.dtype,
            "output_rounding": "toward_zero" if widened else "nearest",
            "tf32": False,
            "prescaled_q": False,
            "tile": self._configuration("decode", spec, self.device).block_n,
        }

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """The launch reads the batch's tensors in place and has no buffers of its own: nothing to ``reuse``."""
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"the triton kernels do not support {reason}")
        decode = batch.max_query_len == 1 and min(batch.query_lens_host) == 1
        name = "decode" if decode else "prefill"

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            options: dict[str, Any] = {
                "scale": spec.scale_value,
                "out": out,
                "configuration": self._configuration(name, spec, query.device),
            }
            tensors = (query, pools.key, pools.value, batch.block_tables, batch.context_lens)
            if decode:
                out, lse = paged_decode(*tensors, **options)
            else:
                out, lse = paged_prefill(*tensors, batch.query_start, max_query_len=batch.max_query_len, **options)
            return (out, lse) if spec.return_lse else out

        return launch

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """``key`` and ``value`` [num_tokens, num_kv_heads, dim] to the slots; -1 goes nowhere."""
        write_cache(key, value, pools.key, pools.value, slot_mapping)

    def copy_blocks(self, pools: KVPools, copies: Copies) -> None:
        """(source, destination) blocks; ValueError where a destination is another pair's source or destination."""
        copy_blocks(pools.key, pools.value, copies)

    def _configuration(self, name: str, spec: AttentionSpec, device: torch.device) -> Configuration:
        largest = max(spec.head_dim, spec.value_dim_value)
        chosen = configure(name, largest, getattr(torch, spec.dtype), device)
        return chosen if self.block_n is None else replace(chosen, block_n=self.block_n)
