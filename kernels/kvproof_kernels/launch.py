"""How a kernel is started: compiled on a GPU, in Triton's interpreter on a CPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from kvproof_kernels.interpreter import run_interpreted


class Compilable(Protocol):
    """A configuration of ``kvproof_kernels.tiles``."""

    @property
    def constants(self) -> dict[str, Any]: ...
    @property
    def compiler_options(self) -> dict[str, Any]: ...


def backend_of(device: torch.device) -> str:
    """ "cuda", "hip" or "interpreter"."""
    if is_interpreted(device):
        return "interpreter"
    return "hip" if torch.version.hip else "cuda"


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels on ``device`` run in Triton's interpreter: always on a CPU, and under TRITON_INTERPRET=1."""
    from kvproof_kernels import steps

    return device.type == "cpu" or isinstance(steps.online_softmax, InterpretedFunction)


def launch(kernel: Any, grid: tuple[int, ...], configuration: Compilable, arguments: tuple[Any, ...]) -> None:
    """Start ``kernel`` on the device of its first argument; an empty grid is no work."""
    if 0 in grid:
        return
    if is_interpreted(arguments[0].device):
        run_interpreted(kernel, grid, *arguments, **configuration.constants)
        return
    with torch.cuda.device_of(arguments[0]):  # Triton launches on the current device, whichever the tensors are on
        kernel[grid](*arguments, **configuration.constants, **configuration.compiler_options)


def as_bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: one compilation an element size, and no rule about NaN touches what is moved."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides in elements. A dim of size 1 may carry any stride; it gets one that keeps the kernels' alignment."""
    aligned = zip(tensor.stride(), tensor.shape, strict=True)
    return tuple(tensor.shape[-1] if size == 1 else stride for stride, size in aligned)
