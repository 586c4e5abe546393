"""How long a step takes at least: the roofline of its bytes and of its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

StepTime = Callable[[int, int, int], float]
"""(tokens computed in the step, tokens of context read, tokens swapped) -> milliseconds."""


@dataclass(frozen=True)
class Gpu:
    """Peaks of one device, as its maker states them."""

    name: str
    memory_bytes_per_second: float
    flops_per_second: float
    """Dense bfloat16 on the tensor cores, without sparsity."""
    host_bytes_per_second: float
    """To and from the host, one direction."""
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-80", 2.039e12, 312e12, 32e9, "NVIDIA A100 80GB SXM data sheet; PCIe Gen4 x16"),
        Gpu("h100", 3.35e12, 989e12, 64e9, "NVIDIA H100 SXM data sheet, half the sparse figure; PCIe Gen5 x16"),
        Gpu("h200", 4.8e12, 989e12, 64e9, "NVIDIA H200 SXM data sheet, half the sparse figure; PCIe Gen5 x16"),
        Gpu("h20", 4.0e12, 148e12, 64e9, "NVIDIA H20 figures as published by vendors; PCIe Gen5 x16"),
        Gpu("b200", 8.0e12, 2250e12, 64e9, "NVIDIA DGX B200 data sheet, an eighth of the system; PCIe Gen5 x16"),
    )
}
"""Memory bandwidths are those that public kernel benchmarks of these devices divide by."""


@dataclass(frozen=True)
class Roofline:
    """Weights once a batch and the KV cache of each sequence's context against bandwidth, arithmetic against peak.

    The arithmetic of attention itself is left out, and so is every overhead: a lower bound, not a forecast. A call
    gives milliseconds.

    Raises:
        ValueError: a number that is not above 0 and finite.
    """

    gpu: Gpu
    weight_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float
    """2 x parameters that a token meets."""
    num_devices: int = 1
    """Tensor parallel, communication not counted."""

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "kv_bytes_per_token", "flops_per_token", "num_devices"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Roofline.{name}: {getattr(self, name)} is not above 0 and finite")

    @cached_property
    def _ms(self) -> tuple[float, float, float, float]:
        """Of the weights, of a token of context, of a token computed, and of a token swapped."""
        memory_ms = 1000 / (self.gpu.memory_bytes_per_second * self.num_devices)
        return (
            self.weight_bytes * memory_ms,
            self.kv_bytes_per_token * memory_ms,
            1000 * self.flops_per_token / (self.gpu.flops_per_second * self.num_devices),
            1000 * self.kv_bytes_per_token / (self.gpu.host_bytes_per_second * self.num_devices),
        )

    def __call__(self, num_new_tokens: int, num_context_tokens: int, num_swapped_tokens: int) -> float:
        weights_ms, context_ms, compute_ms, swap_ms = self._ms
        memory_ms = weights_ms + context_ms * num_context_tokens
        return max(memory_ms, compute_ms * num_new_tokens) + swap_ms * num_swapped_tokens
