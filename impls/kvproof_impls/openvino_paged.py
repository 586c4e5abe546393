"""OpenVINO's PagedAttentionExtension on its CPU plugin: the operator that its LLM pipelines run, in a model of its own.

Read in OpenVINO 2026.4.1: core/src/op/paged_attention.cpp (28 inputs), plugins/intel_cpu/src/nodes/paged_attn.cpp and
kernels/scaled_attn/executor_pa.cpp (blocks of 32 tokens, stored [block, head, slot, dim]). A step's keys and values are
inputs, and the operator writes them into the cache; here they are read from the pools, so that they are written back
as they are. The type of the cache is left open and named by KV_CACHE_PRECISION, as SDPAToPagedAttention leaves it: one
that is declared float16 is converted, and then nothing is written (reports/published/findings).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

BLOCK_SIZE = 32
"""executor_pa.cpp asserts it, and the plugin sets it in the model's own shapes."""
PRECISIONS = {"float32": ("f32", "f32"), "float16": ("f16", "f32"), "bfloat16": ("bf16", "bf16")}
"""Of the cache, and in which the operator computes; float16 it computes in float32, but on a CPU with AVX512-FP16."""


class OpenVinoKernel:
    """Contract ``PagedKernel``. Not declared: an LSE and a soft cap, which the operator has not; ``batch_bitwise`` (how
    work is split depends on the batch); scales, since 8-bit caches hold theirs between the codes."""

    pool_order = "HND"
    max_context_len = None
    features = frozenset(
        ["window", "alibi", "sinks", "out", "fused_write", "dirty_tail", "relabel_bitwise", "capacity_bitwise"]
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.block_size != BLOCK_SIZE:
            return f"block_size {spec.block_size}: {BLOCK_SIZE} only"
        if spec.dtype not in PRECISIONS or spec.kv_dtype not in (None, spec.dtype):
            return f"dtype {spec.dtype}, kv_dtype {spec.kv_dtype}: the same of {', '.join(PRECISIONS)}"
        if (spec.k_scale, spec.v_scale, spec.kv_scales) != (1, 1, "tensor"):
            return "scales of keys and values"
        return None if spec.causal else "attention that is not causal"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Weights and sums in float32; in bfloat16 the weights are rounded for the product with V in a prefill."""
        p = "bfloat16" if spec.dtype == "bfloat16" else "float32"
        return {"p": p, "accumulator": "float32", "tile": BLOCK_SIZE}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """The step's index tensors, in OpenVINO's form: tables one after the other, without padding.

        Raises:
            ValueError: an unsupported spec, or query rows before position 0.
        """
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"openvino does not support {reason}")
        request = compiled(spec).create_infer_request()
        step = step_inputs(batch)
        blocks, offsets = query_places(batch)

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            caches = {name: stored(pool, name) for name, pool in (("key", pools.key), ("value", pools.value))}
            new = {name: cache[blocks, :, offsets].flatten(1) for name, cache in caches.items()}
            inputs = {"query": query.contiguous().flatten(1), **new, **step}
            inputs |= {f"{name}_cache.0": cache for name, cache in caches.items()}
            for name, tensor in inputs.items():
                request.set_tensor(name, shared(tensor))
            result = query.new_empty(len(query), spec.num_q_heads, spec.value_dim_value) if out is None else out
            request.infer()
            return result.copy_(read(request.get_output_tensor(0), result))

        return launch


def query_places(batch: PagedBatch) -> tuple[Tensor, Tensor]:
    """[num_tokens] block and offset of each query token's key, by the block tables."""
    import torch

    tokens = [
        (row, position)
        for row, (context_len, query_len) in enumerate(zip(batch.context_lens_host, batch.query_lens_host, strict=True))
        for position in range(context_len - query_len, context_len)
    ]
    row, position = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return batch.block_tables[row, position // BLOCK_SIZE].long(), position % BLOCK_SIZE


def step_inputs(batch: PagedBatch) -> dict[str, Tensor]:
    """What tells the sequences of ``batch`` apart, by the names of the model's inputs."""
    import torch

    seqs = list(zip(batch.context_lens_host, batch.query_lens_host, strict=True))
    if any(query_len > context_len for context_len, query_len in seqs):
        raise ValueError(f"(context, query) lengths {seqs}: openvino knows no query rows before position 0")
    num_blocks = [-(-context_len // BLOCK_SIZE) for context_len, _ in seqs]
    tables = [row[:count] for row, count in zip(batch.block_tables, num_blocks, strict=True)]

    def int32(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return {
        "past_lens": int32([context_len - query_len for context_len, query_len in seqs]),
        "subsequence_begins": batch.query_start.contiguous(),
        "block_indices": torch.cat(tables),
        "block_indices_begins": int32([sum(num_blocks[:i]) for i in range(len(seqs) + 1)]),
        "max_context_len": int32(batch.max_context_len),
        "score_aggregation_window": int32([0] * len(seqs)),
    }


@functools.cache
def compiled(spec: AttentionSpec) -> Any:
    """A model of one operator, compiled for a CPU. The order of inputs is that of the operator's checks."""
    import numpy as np
    import openvino as ov
    from openvino import Type
    from openvino._pyopenvino.op import _PagedAttentionExtension
    from openvino.opset13 import constant, parameter

    empty, no_float = np.zeros(0, np.int32), np.zeros(0, np.float32)
    sinks = no_float if spec.sinks is None else np.array(spec.sinks, np.float32).reshape(1, -1, 1, 1)
    dtype = {"float32": Type.f32, "float16": Type.f16, "bfloat16": Type.bf16}[spec.dtype]
    ports: list[tuple[str, Any, list[int]] | Any] = [
        ("query", dtype, [-1, spec.num_q_heads * spec.head_dim]),
        ("key", dtype, [-1, spec.num_kv_heads * spec.head_dim]),
        ("value", dtype, [-1, spec.num_kv_heads * spec.value_dim_value]),
        ("key_cache.0", Type.dynamic, [-1, -1, -1, -1]),
        ("value_cache.0", Type.dynamic, [-1, -1, -1, -1]),
        *((name, Type.i32, [-1]) for name in ("past_lens", "subsequence_begins", "block_indices")),
        ("block_indices_begins", Type.i32, [-1]),
        np.float32(spec.scale_value),
        np.int32(spec.window or 0),
        no_float if spec.alibi_slopes is None else np.array(spec.alibi_slopes, np.float32),
        ("max_context_len", Type.i32, []),
        ("score_aggregation_window", Type.i32, [-1]),
        *(empty, empty[:, None], no_float[:, None]),  # no rotation of keys
        *(no_float, np.int32(64), np.int32(8)),  # no sparse attention
        sinks,
        *(np.int32(0), empty, empty, empty),  # no eviction
        *(empty, np.zeros(0, np.uint8), empty),  # no types of tokens, no bias between queries
    ]
    parameters, arguments = [], []
    for port in ports:
        if isinstance(port, tuple):
            name, kind, shape = port
            parameters.append(parameter(ov.PartialShape(shape), kind, name=name))
            parameters[-1].output(0).get_tensor().set_names({name})
            arguments.append(parameters[-1].output(0))
        else:
            arguments.append(constant(port).output(0))
    attention = _PagedAttentionExtension(arguments)
    sizes = {"num_k_heads": spec.num_kv_heads, "k_head_size": spec.head_dim}
    sizes |= {"num_v_heads": spec.num_kv_heads, "v_head_size": spec.value_dim_value}
    for name, size in sizes.items():  # by which the plugin lays out the cache
        attention.get_rt_info()[name] = size
    cache, inference = PRECISIONS[spec.dtype]
    options = {"KV_CACHE_PRECISION": cache, "INFERENCE_PRECISION_HINT": inference}
    return ov.Core().compile_model(ov.Model([attention.output(0)], parameters), "CPU", options)


def stored(pool: Tensor, name: str) -> Tensor:
    """[block, head, slot, dim] as it lies in memory.

    Raises:
        ValueError: strides between which something else lies.
    """
    cache = pool.transpose(1, 2)
    if not cache.is_contiguous():
        raise ValueError(f"the {name} pool has strides {pool.stride()}: blocks must be packed, in the order HND")
    return cache


def shared(tensor: Tensor) -> Any:
    """An OpenVINO tensor on the same memory."""
    import openvino as ov
    import torch

    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return ov.Tensor(tensor.view(torch.int16).numpy(), ov.Shape(list(tensor.shape)), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)


def read(output: Any, like: Tensor) -> Tensor:
    """What the operator gave, with the type and the shape of ``like``."""
    import torch

    if like.dtype != torch.bfloat16:
        return torch.from_numpy(output.data).view_as(like)
    return torch.from_numpy(output.data.view("int16")).view(torch.bfloat16).view_as(like)
