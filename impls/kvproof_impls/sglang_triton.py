"""SGLang's Triton attention and its cache write: compiled on a GPU, in Triton's interpreter on a CPU.

Read in SGLang 0.5.23: kernels/ops/attention/decode_attention.py and extend_attention.py, and what an engine makes of
them in srt/layers/attention/triton_backend.py, whose choices are made here. One query a sequence is a decode: over the
token slots of the context, in 8 splits that on a GPU depend on the batch. All else is an extend: over the slots of the
prefix, and over keys and values of the step itself, which an engine has at hand and which are gathered from their slots
here. A window of w tokens is ``sliding_window_size`` w - 1 (models/gemma3_causal.py); the slots inside it are counted
by the back end's own function. Indices of tokens are made from the block tables in ``plan``.

Not here: pools of 8 bits, for which the kernels round the query to 8 bits as well, a rounding that no arithmetic of the
contract has; ALiBi, which they don't know. On a GPU a write skips slot 0, which is no request's in its pools.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from kvproof_impls.foreign_triton import quiet, unsupported_types
from kvproof_impls.sglang_library import parts_of
from kvproof_impls.sglang_tokens import model_options, packed, room_for, slots_of, tokens_of

CALLS = {
    "_set_kv_buffer_impl": "srt.mem_cache.memory_pool",
    "decode_attention_fwd": "kernels.ops.attention.decode_attention",
    "extend_attention_fwd": "kernels.ops.attention.extend_attention",
    "get_device_core_count": "srt.utils",
    "get_num_kv_splits_triton": "kernels.ops.attention.metadata",
    "update_sliding_window_buffer": "srt.layers.attention.triton_backend",
}
"""Name to its module below ``sglang``."""
MAX_SPLITS = 8  # triton_attention_num_kv_splits, srt/arg_groups/fields/exec_.py
LATENT = ((576, 512), (288, 256))
"""(head_dim, value_dim) for which the kernels split the key of latent attention in two."""


class SglangTritonKernel:
    """Contract ``PagedKernel``.

    Not declared: ``batch_bitwise`` (splits depend on the batch), ``empty_rows`` (decode gives 0/0, and who may pass
    such a row, decode context parallelism, clears the NaN: layers/dcp/comm.py), ``graph`` (not tried).
    """

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        [
            *("capacity_bitwise", "dirty_tail", "lse", "mla", "out", "relabel_bitwise", "run_bitwise"),
            *("sinks", "softcap", "window"),
        ]
    )

    def __init__(self) -> None:
        self.interpreted = not torch.cuda.is_available()
        self._lib = library(self.interpreted)

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if (reason := unsupported_types(spec, self.interpreted)) is not None:
            return reason
        if spec.mla and (spec.head_dim, spec.value_dim_value) not in LATENT:
            return f"mla with head_dim {spec.head_dim}, value_dim {spec.value_dim}: one of {LATENT}"
        if spec.alibi_slopes:
            return "alibi_slopes: it knows none"
        if spec.window == 1:
            return "window 1: its size would be 0, which a layer takes for none (layers/radix_attention.py)"
        if spec.sinks and spec.return_lse:
            return "sinks with return_lse: the sink is not in what decode stores, and its merging of it knows none"
        return None if spec.k_scale == spec.v_scale == 1 else "k_scale, v_scale: 8-bit pools are not driven here"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Weights in the type of the values (decode with a key head a query head keeps float32); sums in float32 over
        tiles of 32 tokens and more. There, too, the products of q and k are rounded to their type before they are
        summed, which is what rounding q once would cost. On a GPU ``tl.dot`` takes float32 as TF32, Triton's default.
        """
        rounded = spec.group_size == 1 and spec.dtype != "float32"
        tf32 = spec.dtype == "float32" and not self.interpreted
        return {"p": spec.dtype, "partials": "float32", "tile": 64, "prescaled_q": rounded, "tf32": tf32}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"sglang-triton does not support {reason}")
        decode = all(length == 1 for length in batch.query_lens_host)
        return (self._plan_decode if decode else self._plan_extend)(spec, batch)

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """Padding of an engine goes to slot 0; here what has no slot is left out."""
        kept = slot_mapping >= 0
        keys, slots = tokens_of(pools.key), slot_mapping[kept]
        if spec.mla:
            keys[slots] = key[kept]  # as MLATokenToKVPool.set_kv_buffer does (srt/mem_cache/memory_pool.py)
            return
        values, row = tokens_of(pools.value), spec.num_kv_heads * spec.head_dim
        self._lib._set_kv_buffer_impl(
            *(key[kept], value[kept], keys, values, slots, row, keys.dtype),
            *(torch.cuda if keys.is_cuda else torch.cpu, len(keys)),
            v_row_dim=spec.num_kv_heads * spec.value_dim_value,
        )

    def _plan_decode(self, spec: AttentionSpec, batch: PagedBatch) -> Launch:
        indptr, indices = self._visible(spec, batch, batch.context_lens_host)
        num_splits = self._num_splits(spec, indptr)
        shape = (batch.num_seqs, spec.num_q_heads, MAX_SPLITS)
        room: dict[str, Any] = {"dtype": torch.float32, "device": indices.device}
        logits, lse = torch.empty(*shape, spec.value_dim_value, **room), torch.full(shape, -torch.inf, **room)
        options = {**model_options(spec, indices.device), "has_mla": spec.mla}

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            out = room_for(query, spec) if out is None else out
            keys, values = tokens_of(pools.key), tokens_of(pools.value)
            splits = (logits, lse, num_splits, MAX_SPLITS)
            with quiet():
                self._lib.decode_attention_fwd(
                    packed(query), keys, values, out, indptr, indices, *splits, spec.scale_value, 1.0, 1.0, **options
                )
            return (out, torch.logsumexp(lse, dim=-1)) if spec.return_lse else out  # as triton_backend.py does

        return launch

    def _plan_extend(self, spec: AttentionSpec, batch: PagedBatch) -> Launch:
        lengths = tuple(zip(batch.context_lens_host, batch.query_lens_host, strict=True))
        indptr, indices = self._visible(spec, batch, [context - new for context, new in lengths])
        own = slots_of(batch, spec.block_size, [(context - new, context) for context, new in lengths])
        options = model_options(spec, indices.device)
        window = -1 if spec.window is None else spec.window - 1

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            out = room_for(query, spec) if out is None else out
            keys, values = tokens_of(pools.key), tokens_of(pools.value)
            lse = query.new_empty(query.shape[:2], dtype=torch.float32) if spec.return_lse else None
            step = (packed(query), keys[own], values[own].contiguous(), out)
            mask = (None, spec.causal, None, batch.max_query_len)
            with quiet():
                self._lib.extend_attention_fwd(
                    *(*step, keys, values, batch.query_start, indptr, indices, *mask, 1.0, 1.0, spec.scale_value),
                    **(options | {"sliding_window_size": window, "lse_extend": lse}),
                )
            return (out, lse) if spec.return_lse else out

        return launch

    def _visible(self, spec: AttentionSpec, batch: PagedBatch, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Slots of the tokens before ``lengths`` that a kernel is shown, and where each sequence's begin."""
        device = batch.block_tables.device
        kept = torch.tensor(lengths, dtype=torch.int32)
        if spec.window is not None:
            indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
            translator = SimpleNamespace(pack_read_stream=lambda *_, **__: True, window_kv_kind=None)
            *_, kept, _ = self._lib.update_sliding_window_buffer(
                indptr, translator, None, None, spec.window - 1, kept, len(lengths), device="cpu"
            )
        ranges = [(length - count, length) for length, count in zip(lengths, kept.tolist(), strict=True)]
        indptr = torch.tensor([0, *itertools.accumulate(kept.tolist())], dtype=torch.int32)
        return indptr.to(device), slots_of(batch, spec.block_size, ranges)

    def _num_splits(self, spec: AttentionSpec, indptr: Tensor) -> Tensor:
        lengths = indptr.diff()
        splits = torch.full_like(lengths, MAX_SPLITS)
        if indptr.is_cuda:
            cores, most = self._lib.get_device_core_count(indptr.device.index or 0), max(256, len(lengths))
            self._lib.get_num_kv_splits_triton[(1,)](
                *(splits, lengths, len(lengths), 1, spec.num_q_heads, spec.num_kv_heads, MAX_SPLITS, cores),
                MAX_NUM_SEQ=1 << (most - 1).bit_length(),
            )
        return splits


@cache
def library(interpreted: bool) -> SimpleNamespace:
    """What is used of SGLang.

    Raises:
        RuntimeError: Triton was imported before, for compiled kernels.
    """
    if interpreted and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton is imported already, without its interpreter: use a process of its own")
    with patch.dict(os.environ, {"TRITON_INTERPRET": "1"} if interpreted else {}):
        return parts_of("sglang", CALLS)
