"""What a compiled kernel takes of a chip, and what its machine code looks like; found without a GPU.

A variant is a kernel with everything that Triton specialises it for. It is compiled down to machine code with the tools
inside Triton's wheel; registers and spills are read from the report of Triton's own run of ptxas for NVIDIA, from the
metadata in the assembly for AMD. A figure that can't be read is an error, never taken for zero. Triton itself does not
compare shared memory with what the chip has, so that the gate is here.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import triton
from triton.compiler import ASTSource

from kvproof_kernels.chips import CHIPS, Occupancy, occupancy
from kvproof_kernels.machine_code import Line, read_code

NOTHING: Mapping[str, int] = {}


class UnreadableFigure(RuntimeError):
    """The compiler's report does not hold a figure that it must hold."""


@dataclass(frozen=True)
class Variant:
    """A kernel with everything that Triton specialises it for, but the chip."""

    kernel: str
    """As tables name it."""
    case: str
    """What it serves, in words; (kernel, case) tells variants apart."""
    function: Any
    types: Mapping[str, str]
    """Triton's type of each argument: "*fp16", "i32", ..., "constexpr"."""
    constants: Mapping[str, Any]
    """The value of each "constexpr"."""
    options: Mapping[str, Any]
    """``num_warps``, ``num_stages``, ..."""
    divisible: frozenset[str]
    """Arguments that are known to be multiples of 16: integers, and pointers in bytes."""
    row_lines: frozenset[Line] = frozenset()
    """Source lines that load rows of K and V; none: the kernel attends to nothing."""
    row_bytes: int = 16
    """The least that a thread should load of them at once."""
    needs_tensor_cores: bool = False


@dataclass(frozen=True)
class Resources:
    """One variant on one chip, by one version of Triton."""

    kernel: str
    case: str
    target: str
    """A name of ``CHIPS``."""
    tile: str
    """Constants of the variant that are tile sizes."""
    num_warps: int
    num_stages: int
    registers: int
    """A thread; on AMD vector registers, accumulation registers included."""
    spill_bytes: int
    """A thread: registers moved out to memory."""
    shared_bytes: int
    """A program."""
    tensor_columns: int
    """Of Blackwell's tensor memory, a program."""
    row_bytes: int | None
    """The narrowest load of K and V, a thread; None: the variant loads neither."""
    tensor_cores: int
    """Instructions on them."""
    local_memory: int
    """Accesses to a thread's own memory."""

    @property
    def occupancy(self) -> Occupancy:
        figures = {"registers": self.registers, "shared_bytes": self.shared_bytes, "num_warps": self.num_warps}
        return occupancy(CHIPS[self.target], **figures, tensor_columns=self.tensor_columns)


def complaint(row: Resources, variant: Variant) -> str | None:
    """What is wrong with it on any version of Triton, or None."""
    limit = CHIPS[row.target].shared_limit
    if row.spill_bytes:
        return f"spills {row.spill_bytes} bytes a thread"
    if row.shared_bytes > limit:
        return f"takes {row.shared_bytes:,} bytes of shared memory, {row.target} has {limit:,}"
    if row.local_memory:
        return f"accesses a thread's own memory, which is the chip's main memory, {row.local_memory} times"
    if row.row_bytes == 0:
        return "shows no load of K or V"
    if row.row_bytes is not None and row.row_bytes < variant.row_bytes:
        return f"loads {row.row_bytes} bytes of a row of K or V at once instead of {variant.row_bytes}"
    if variant.needs_tensor_cores and not row.tensor_cores:
        return "uses no tensor cores"
    return None


def compile_variant(variant: Variant, target: str) -> Resources:
    """Compile ``variant`` for a chip, a name of ``CHIPS``, and read what it takes.

    Raises:
        ValueError: an unknown chip.
        UnreadableFigure: the compiler's report lacks a figure.
        UnreadableCode: the machine code can't be read.
    """
    if target not in CHIPS:
        raise ValueError(f"unknown target {target!r}; known: {', '.join(CHIPS)}")
    # On AMD a pointer into less than 2 GiB is specialised further, for buffer instructions: both kinds occur.
    if CHIPS[target].target.backend == "cuda":
        return _compile(variant, target)
    return _worse(_compile(variant, target), _compile(variant, target, {"tt.pointer_range": 32}))


def _compile(variant: Variant, target: str, pointer_attributes: Mapping[str, int] = NOTHING) -> Resources:
    log = io.StringIO()
    knobs = triton.knobs
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        knobs.compilation.always_compile = True  # else the report of the assembler would be missing
        knobs.nvidia.dump_ptxas_log = True
        chip = CHIPS[target].target
        compiled = triton.compile(source_of(variant, pointer_attributes), target=chip, options=dict(variant.options))
    cuda = chip.backend == "cuda"
    registers, spill_bytes = read_ptxas(log.getvalue()) if cuda else read_amdgcn(compiled.asm["amdgcn"])
    code = read_code(compiled.asm, variant.row_lines)
    return Resources(
        *(variant.kernel, variant.case, target, _tile(variant.constants)),
        *(compiled.metadata.num_warps, compiled.metadata.num_stages),
        *(registers, spill_bytes, compiled.metadata.shared, getattr(compiled.metadata, "tmem_size", 0)),
        row_bytes=min(code.row_loads, default=0) if variant.row_lines else None,
        tensor_cores=code.tensor_cores,
        local_memory=code.local_memory,
    )


def source_of(variant: Variant, pointer_attributes: Mapping[str, int] = NOTHING) -> ASTSource:
    """What Triton compiles; ``pointer_attributes`` are those that all pointers have besides."""
    attrs = {}
    for number, (name, kind) in enumerate(variant.types.items()):
        given = {"tt.divisibility": 16} if name in variant.divisible else {}
        given |= pointer_attributes if kind.startswith("*") and given else {}
        attrs[(number,)] = [list(item) for item in given.items()]
    return ASTSource(variant.function, dict(variant.types), dict(variant.constants), attrs)


def _tile(constants: Mapping[str, Any]) -> str:
    sizes = ((name.removeprefix("BLOCK_"), value) for name, value in constants.items() if name.startswith("BLOCK_"))
    return " ".join(f"{name}={value}" for name, value in sizes)


def _worse(one: Resources, other: Resources) -> Resources:
    figures = ("registers", "spill_bytes", "shared_bytes", "local_memory")
    worst = {name: max(getattr(one, name), getattr(other, name)) for name in figures}
    rows = None if one.row_bytes is None or other.row_bytes is None else min(one.row_bytes, other.row_bytes)
    return replace(one, **worst, row_bytes=rows, tensor_cores=min(one.tensor_cores, other.tensor_cores))


def read_ptxas(report: str) -> tuple[int, int]:
    """Registers and spilled bytes a thread, from ``ptxas -v``."""
    registers = _figure(r"Used (\d+) registers", report)
    return registers, max(_figure(r"(\d+) bytes spill stores", report), _figure(r"(\d+) bytes spill loads", report))


def read_amdgcn(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes a thread, from the kernel's metadata; a register has 4 bytes a thread.

    Scalar registers spill into lanes of vector registers, which touches no memory and does not count.
    """
    spilled = 4 * _figure(r"\.vgpr_spill_count:\s+(\d+)", assembly)
    private = _figure(r"\.private_segment_fixed_size:\s+(\d+)", assembly)
    return _figure(r"\.vgpr_count:\s+(\d+)", assembly), max(spilled, private)


def _figure(pattern: str, report: str) -> int:
    found = re.findall(pattern, report)
    if len(found) != 1:
        raise UnreadableFigure(f"expected one match of {pattern!r}, found {len(found)} in:\n{report[-2000:]}")
    return int(found[0])
