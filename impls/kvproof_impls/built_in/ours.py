"""Written here."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof_impls.built_in.entry import Entry

OURS: Mapping[str, Entry] = {
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
    "torch": Entry(
        "gathers through the block table, then SDPA with the query heads of a group as rows",
        kernel="kvproof_impls.torch_gather:TorchKernel",
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
}
