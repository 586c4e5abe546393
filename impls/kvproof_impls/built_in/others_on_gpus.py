"""Other people's, for CUDA devices: each in the range of versions that its adapter was read against."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof_impls.built_in.entry import Entry

OTHERS_ON_GPUS: Mapping[str, Entry] = {
    "tensorrt-llm": Entry(
        "TensorRT-LLM's KVCacheManager, version 2",
        allocator="kvproof_impls.tensorrt_llm:TensorRtLlmAllocator",
        distribution="tensorrt-llm",
        modules=("tensorrt_llm",),
        versions=">=1.3.0rc0,<2",
        install="its release 1.3 or newer, from NVIDIA's own package index",
    ),
    "flash-attn": Entry(
        "FlashAttention 2 with a block table",
        kernel="kvproof_impls.flash_attention:FlashAttentionKernel",
        distribution="flash-attn",
        modules=("flash_attn", "flash_attn_2_cuda"),
        extra="flash-attn",
        versions=">=2.7,<3",
    ),
    "flash-attn-3": Entry(
        "FlashAttention 3 with a page table",
        kernel="kvproof_impls.flash_attention_3:FlashAttention3Kernel",
        distribution="flash_attn_3",
        modules=("flash_attn_interface", "flash_attn_3"),
        versions=">=3.0.0b1,<4",
        install="build the folder hopper of github.com/Dao-AILab/flash-attention; PyPI has no wheel",
        compute_capabilities=(8, 9),
    ),
    "flash-attn-4": Entry(
        "FlashAttention 4 with a page table",
        kernel="kvproof_impls.flash_attention_4:FlashAttention4Kernel",
        distribution="flash-attn-4",
        # Its folder is flash_attn, as that of version 2; quack is what only this one brings.
        modules=("flash_attn", "quack"),
        versions=">=4.0.0b36,<4.1",
        install="pip install 'flash-attn-4>=4.0.0b36,<4.1' where no flash-attn is: they share a folder",
        compute_capabilities=(9, 10, 11),
    ),
    "torch-varlen": Entry(
        "torch's varlen attention with a block table",
        kernel="kvproof_impls.torch_varlen:TorchVarlenKernel",
        distribution="torch",
        versions=">=2.13,<2.14",
        install="pip install 'torch>=2.13,<2.14'",
    ),
    **{
        name: Entry(
            f"FlashInfer's {what}",
            kernel=f"kvproof_impls.flashinfer_{kernel}",
            distribution="flashinfer-python",
            modules=("flashinfer",),
            extra="flashinfer",
            versions=">=0.7.2,<0.8",
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
