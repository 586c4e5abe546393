"""What a compiled kernel takes of a chip: registers, spilled bytes, shared memory; found without a GPU.

Kernels are compiled ahead of time down to machine code with the tools inside Triton's wheel: ptxas and its ``-v``
report for NVIDIA, the metadata in the assembly for AMD. A figure that can't be read is an error, never taken for zero.
Triton itself does not compare shared memory with what the chip has, so the limit stands beside the figure here.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kvproof_kernels.block_copy import block_copy_kernel
from kvproof_kernels.cache_write import cache_write_kernel
from kvproof_kernels.decode import decode_kernel
from kvproof_kernels.launch import Configuration, CopyConfiguration, copy_tile_for, tile_for
from kvproof_kernels.prefill import prefill_kernel

KERNELS: Mapping[str, Any] = {
    "decode": decode_kernel,
    "prefill": prefill_kernel,
    "cache_write": cache_write_kernel,
    "block_copy": block_copy_kernel,
}

TARGETS: Mapping[str, tuple[GPUTarget, int]] = {
    "sm_80": (GPUTarget("cuda", 80, 32), 166_912),
    "sm_90": (GPUTarget("cuda", 90, 32), 232_448),
    "sm_100": (GPUTarget("cuda", 100, 32), 232_448),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 65_536),
}
"""The chip, and the bytes of shared memory that one program may have on it."""

TYPES: Mapping[str, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
BITS: Mapping[str, str] = {"float16": "i16", "bfloat16": "i16", "float32": "i32"}
INDEX_POINTERS: Mapping[str, str] = {
    "block_tables": "*i32",
    "context_lens": "*i32",
    "query_start": "*i32",
    "slot_mapping": "*i64",
    "sources": "*i64",
    "destinations": "*i64",
    "lse": "*fp32",
}
ROW_POINTERS = ("query", "key", "value", "key_pool", "value_pool", "out")
ALIGNED = [["tt.divisibility", 16]]
BELOW_2_GIB = [["tt.pointer_range", 32]]


class UnreadableFigure(RuntimeError):
    """The compiler's report does not hold a figure that it must hold."""


@dataclass(frozen=True)
class Resources:
    """One kernel in one configuration on one chip."""

    kernel: str
    target: str
    head_dim: int
    group_size: int
    block_size: int
    dtype: str
    registers: int
    """A thread; on AMD vector registers, accumulation registers included."""
    spill_bytes: int
    """A thread: registers moved out to memory."""
    shared_bytes: int
    """A program."""
    num_warps: int

    @property
    def shared_limit(self) -> int:
        return TARGETS[self.target][1]

    @property
    def complaint(self) -> str | None:
        """What is wrong with it, or None."""
        if self.spill_bytes:
            return f"spills {self.spill_bytes} bytes a thread"
        if self.shared_bytes > self.shared_limit:
            return f"takes {self.shared_bytes:,} bytes of shared memory, {self.target} has {self.shared_limit:,}"
        return None


def compile_resources(
    kernel: str, target: str, *, head_dim: int, group_size: int = 1, block_size: int = 16, dtype: str = "float16"
) -> Resources:
    """Compile what the launcher would choose and read what it takes.

    Args:
        kernel: a name of ``KERNELS``.
        target: a name of ``TARGETS``.
        head_dim: the larger of head and value dim.
        group_size: query heads a key head. A run-time argument, as is ``block_size``: they change no figure.
        block_size: tokens a block.
        dtype: "float16", "bfloat16" or "float32".

    Raises:
        ValueError: an unknown kernel, target or dtype, or a process in which Triton only interprets.
        UnreadableFigure: the compiler's report lacks a figure.
    """
    for name, value, known in (("kernel", kernel, KERNELS), ("target", target, TARGETS), ("dtype", dtype, TYPES)):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}")
    itemsize = getattr(torch, dtype).itemsize
    attention = kernel in ("decode", "prefill")
    backend = TARGETS[target][0].backend
    configuration = tile_for(kernel, head_dim, itemsize, backend) if attention else copy_tile_for(head_dim)
    element = (TYPES if attention else BITS)[dtype]
    registers, spill_bytes, shared_bytes = _compile(kernel, target, configuration, element)
    return Resources(
        *(kernel, target, head_dim, group_size, block_size, dtype),
        *(registers, spill_bytes, shared_bytes, configuration.num_warps),
    )


@functools.cache
def _compile(
    kernel: str, target: str, configuration: Configuration | CopyConfiguration, element: str
) -> tuple[int, int, int]:
    gpu = TARGETS[target][0]
    figures = []
    # On AMD a pointer into less than 2 GiB is specialised further, for buffer instructions: both forms can occur.
    for attributes in [ALIGNED] if gpu.backend == "cuda" else [ALIGNED, ALIGNED + BELOW_2_GIB]:
        source = specialize(KERNELS[kernel], configuration.constants, element, attributes)
        compiled = triton.compile(source, target=gpu, options=configuration.options)
        if gpu.backend == "cuda":
            registers, spill_bytes = read_ptxas(_ptxas_report(compiled.asm["ptx"], gpu.arch))
        else:
            registers, spill_bytes = read_amdgcn(compiled.asm["amdgcn"])
        figures.append((registers, spill_bytes, compiled.metadata.shared))
    worst = [max(column) for column in zip(*figures, strict=True)]
    return worst[0], worst[1], worst[2]


def specialize(kernel: Any, constants: Mapping[str, Any], element: str, attributes: list[Any]) -> ASTSource:
    """The kernel as the launcher's arguments specialise it: rows and strides in multiples of 16, see ``validation``."""
    if not isinstance(kernel, JITFunction):
        raise ValueError("TRITON_INTERPRET is set: nothing can be compiled in this process; unset it")
    types = {parameter.name: _type(parameter.name, constants, element) for parameter in kernel.params}
    attrs = {}
    for parameter in kernel.params:
        kind = types[parameter.name]
        granted = [] if parameter.do_not_specialize or kind in ("constexpr", "fp32") else attributes
        attrs[(parameter.num,)] = [item for item in granted if kind.startswith("*") or item not in BELOW_2_GIB]
    return ASTSource(kernel, types, dict(constants), attrs)


def _type(name: str, constants: Mapping[str, Any], element: str) -> str:
    if name in constants:
        return "constexpr"
    if name in ROW_POINTERS:
        return f"*{element}"
    return "fp32" if name == "scale_log2" else INDEX_POINTERS.get(name, "i32")


def _ptxas_report(ptx: str, arch: int) -> str:
    """What ``ptxas -v`` says; Triton's own choice among the bundled assemblers, and its architecture suffix."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        command = [get_ptxas(arch).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={sm_arch_from_capability(arch)}"]
        done = subprocess.run([*command, str(file), "-o", str(file.with_suffix(".o"))], capture_output=True, text=True)
    if done.returncode:
        raise UnreadableFigure(f"ptxas failed with {done.returncode}: {done.stderr.strip()}")
    return done.stderr


def read_ptxas(report: str) -> tuple[int, int]:
    """Registers and spilled bytes a thread, from ``ptxas -v``."""
    registers = _figure(r"Used (\d+) registers", report)
    return registers, max(_figure(r"(\d+) bytes spill stores", report), _figure(r"(\d+) bytes spill loads", report))


def read_amdgcn(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes a thread, from the kernel's metadata; a register has 4 bytes a thread."""
    spilled = _figure(r"\.vgpr_spill_count:\s+(\d+)", assembly) + _figure(r"\.sgpr_spill_count:\s+(\d+)", assembly)
    return _figure(r"\.vgpr_count:\s+(\d+)", assembly), 4 * spilled


def _figure(pattern: str, report: str) -> int:
    found = re.findall(pattern, report)
    if len(found) != 1:
        raise UnreadableFigure(f"expected one match of {pattern!r}, found {len(found)} in:\n{report[-2000:]}")
    return int(found[0])
