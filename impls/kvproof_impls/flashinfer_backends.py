"""What each back end of FlashInfer takes, as data; its wrappers check it late, or not at all.

Read in flashinfer-python 0.7.2.post1: ``decode.py`` and ``prefill.py`` (the wrappers' ``plan`` and ``run``),
``attention/_core.py`` (sinks), ``cudnn/``, ``utils.py`` (``is_fa3_backend_supported``). Nothing of it was run here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof_impls.contract import AttentionSpec

CUDA_CORE_GROUPS = (1, 2, 3, 4, 6, 8, 16)
"""Query heads a key head for which the decode kernel without tensor cores is compiled (``utils.cuh``)."""
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Backend:
    """One value of ``backend=``, with a layout of the pools."""

    name: str
    layout: str = "NHD"
    options: frozenset[str] = frozenset({"lse", "out"})
    """Features of the contract that both of its wrappers, decode and prefill, take."""
    head_dims: tuple[int, ...] = (64, 128, 256)
    block_sizes: tuple[int, ...] = ()
    """Empty: any."""
    kv_dtypes: tuple[str, ...] = ()
    """Beside the type of the query."""
    fp8_query: tuple[str, ...] = ("float16", "bfloat16")
    """Types of the query that go with 8-bit pools."""
    tensor_cores: bool = True
    """Decode always on tensor cores; else by the group size."""
    sinks_by: str = "run"
    """The argument of ``run``, or "wrapper": a class of its own. Given to ``run`` of FA2 and FA3, sinks are ignored."""

    @property
    def features(self) -> frozenset[str]:
        """Pages reach a kernel by number, only those that hold tokens: neither pool nor table width can matter."""
        fp8 = {"fp8"} if self.kv_dtypes else set()
        return self.options | fp8 | {"capacity_bitwise", "relabel_bitwise", "run_bitwise"}


CLASSIC = frozenset({"lse", "out", "window", "softcap", "sinks", "dirty_tail"})
"""Of FA2 and FA3. V past a context is filled with zeros, not read: ``prefill.cuh`` and ``decode.cuh`` (``kFillZero``),
``hopper/sparse_mainloop.cuh`` (``cp_async_zfill``). A sink is a term of the sum, and of the LSE (``variants.py``)."""
FA2 = Backend("fa2", options=CLASSIC, kv_dtypes=FLOAT8, tensor_cores=False, sinks_by="wrapper")
BACKENDS: Mapping[str, Backend] = {
    "auto": Backend("auto", options=CLASSIC, kv_dtypes=FLOAT8, tensor_cores=False, sinks_by="wrapper"),
    "fa2": FA2,
    "fa2-hnd": Backend(**{**vars(FA2), "layout": "HND"}),
    # Its 8-bit pools want an 8-bit query, which the contract has not.
    "fa3": Backend("fa3", options=CLASSIC, sinks_by="wrapper"),
    # It converts NHD by a view, and its kernels are made for HND. Pages above 128 are answered wrongly: issue 4347.
    "trtllm-gen": Backend(
        "trtllm-gen",
        layout="HND",
        options=frozenset({"lse", "out", "window", "sinks"}),
        head_dims=(64, 128, 256),
        block_sizes=(16, 32, 64, 128),
        kv_dtypes=("float8_e4m3fn",),
        fp8_query=("bfloat16",),
    ),
    # Decode takes a window and sinks, prefill neither.
    "cudnn": Backend("cudnn", head_dims=(64, 128), tensor_cores=False),
}


def unsupported(spec: AttentionSpec, backend: Backend) -> str | None:
    """Why ``backend`` can't run ``spec``, or None."""
    if spec.dtype not in ("float16", "bfloat16"):
        return f"dtype {spec.dtype!r}: its kernels take a float16 or bfloat16 query"
    if spec.head_dim not in backend.head_dims:
        return f"head_dim {spec.head_dim}: compiled for {', '.join(map(str, backend.head_dims))} only"
    if spec.value_dim_value != spec.head_dim:
        return f"value_dim {spec.value_dim}: the decode wrapper takes one head size for K and V ({spec.head_dim})"
    if backend.block_sizes and spec.block_size not in backend.block_sizes:
        return f"block_size {spec.block_size}: {backend.name} takes {', '.join(map(str, backend.block_sizes))} only"
    return _unsupported_pool(spec, backend) or _unsupported_option(spec, backend)


def arithmetic(spec: AttentionSpec) -> Mapping[str, Any]:
    """Tensor cores round the weights to the query's type; partial results of splits stay in float32 (``decode.cuh``,
    ``prefill.cuh``: ``tmp_v`` is float). ``run`` multiplies the finished output by ``v_scale``: rounded once more,
    which is the bound of one rounding toward zero, unless the scale is a power of two."""
    twice = math.frexp(spec.v_scale)[0] != 0.5
    rounding = "toward_zero" if twice else "nearest"
    return {"p": spec.dtype, "accumulator": "float32", "partials": "float32", "output_rounding": rounding}


def model_options(spec: AttentionSpec) -> dict[str, Any]:
    """What both wrappers' ``plan`` takes for the options of a model; their default type of the query is float16."""
    import torch

    return {
        "window_left": -1 if spec.window is None else spec.window - 1,
        "logits_soft_cap": spec.softcap or 0.0,
        "sm_scale": spec.scale_value,
        "q_data_type": getattr(torch, spec.dtype),
        "kv_data_type": getattr(torch, spec.kv_dtype or spec.dtype),
    }


def _unsupported_pool(spec: AttentionSpec, backend: Backend) -> str | None:
    if spec.kv_dtype in (None, spec.dtype):
        if spec.k_scale != 1 or spec.v_scale != 1:
            return "k_scale, v_scale: this adapter passes none, they belong to 8-bit pools"
        return None
    if spec.kv_dtype not in backend.kv_dtypes:
        return f"kv_dtype {spec.kv_dtype!r}: {backend.name} stores K and V in the type of the query ({spec.dtype})"
    if spec.dtype not in backend.fp8_query:
        return f"kv_dtype {spec.kv_dtype!r}: {backend.name} has no such kernel for a {spec.dtype} query"
    if spec.kv_scales != "tensor":
        return f"kv_scales {spec.kv_scales!r}: run takes one scale for all keys and one for all values"
    return None


def _unsupported_option(spec: AttentionSpec, backend: Backend) -> str | None:
    if spec.alibi_slopes is not None:
        return "alibi_slopes: its ALiBi mode computes slopes of its own and takes none"
    for name in ("window", "softcap", "sinks"):
        if getattr(spec, name) is not None and name not in backend.options:
            return f"{name}: not every wrapper of {backend.name} takes it"
    if spec.sinks is not None and spec.softcap is not None and backend.sinks_by == "wrapper":
        return "sinks with softcap: the attention variant with a sink knows no soft cap"
    return None
