"""The chips that kernels are compiled for, what a program may have of each, and how many programs one SM or CU holds.

Occupancy is what registers, shared memory, warps and (Blackwell) tensor memory leave room for. A multiprocessor of
either maker has four partitions, each with registers and warp slots of its own; a warp's registers are handed out in
whole granules. A prediction, not a measurement: it says how much latency can be hidden, not how fast a kernel is.

Sources. NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (registers, warps,
blocks, shared memory, 1 KiB of it taken by the system for each block); CUDA Occupancy Calculator (granules); PTX ISA,
"Tensor Memory" (512 columns, allocated in powers of two from 32). AMD: Instinct MI300 ISA reference and LLVM's AMDGPU
usage guide (512 vector registers a lane with the accumulation registers, in granules of 8, 8 waves a SIMD, 64 KiB of
LDS a CU). Scalar registers, which would leave 7 waves of 8 to a kernel with more than 100, are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triton.backends.compiler import GPUTarget

PARTITIONS = 4
"""Of an SM or CU, each with its own registers and warp slots."""


@dataclass(frozen=True)
class Chip:
    """Of one multiprocessor (SM or CU) unless it says "a program". Sizes of memory in bytes."""

    target: GPUTarget
    shared_limit: int
    """A program: more can't be launched."""
    shared_bytes: int
    shared_reserved: int
    """Taken by the system for each program."""
    shared_granule: int
    partition_registers: int
    """32-bit registers of a partition."""
    register_granule: int
    """Registers that are handed to a warp at once."""
    partition_warps: int
    max_programs: int
    tensor_columns: int = 0
    """Of tensor memory; 0: the chip has none."""


@dataclass(frozen=True)
class Occupancy:
    """What one multiprocessor holds of a kernel at once."""

    programs: int
    warps: int
    bound: str
    """What a further program would lack: "registers", "shared memory", "warps", "tensor memory" or "programs"."""


CHIPS: Mapping[str, Chip] = {
    "sm_80": Chip(GPUTarget("cuda", 80, 32), 166_912, 167_936, 1024, 128, 16_384, 256, 16, 32),
    "sm_90": Chip(GPUTarget("cuda", 90, 32), 232_448, 233_472, 1024, 128, 16_384, 256, 16, 32),
    "sm_100": Chip(GPUTarget("cuda", 100, 32), 232_448, 233_472, 1024, 128, 16_384, 256, 16, 32, tensor_columns=512),
    "gfx942": Chip(GPUTarget("hip", "gfx942", 64), 65_536, 65_536, 0, 512, 32_768, 512, 8, 32),
}


def occupancy(chip: Chip, *, registers: int, shared_bytes: int, num_warps: int, tensor_columns: int = 0) -> Occupancy:
    """How many programs, and warps of them, one multiprocessor of ``chip`` holds at once.

    Args:
        chip: a value of ``CHIPS``.
        registers: a thread.
        shared_bytes: a program.
        num_warps: a program.
        tensor_columns: of tensor memory, a program.
    """
    granted = _round_up(registers * chip.target.warp_size, chip.register_granule)
    shared = _round_up(shared_bytes + chip.shared_reserved, chip.shared_granule)
    room = {
        "warps": PARTITIONS * chip.partition_warps // num_warps,
        "programs": chip.max_programs,
        "registers": PARTITIONS * (chip.partition_registers // granted) // num_warps,
        "shared memory": chip.shared_bytes // shared if shared else chip.max_programs,
    }
    if tensor_columns:
        room["tensor memory"] = chip.tensor_columns // max(32, 1 << (tensor_columns - 1).bit_length())
    bound = min(room, key=room.__getitem__)
    return Occupancy(room[bound], room[bound] * num_warps, bound)


def _round_up(number: int, granule: int) -> int:
    return -(-number // granule) * granule
