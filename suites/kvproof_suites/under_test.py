"""An implementation's halves as the laws see them: with the name that the user gave, on the device of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvproof_impls.contract import BlockAllocator


@dataclass(frozen=True)
class KernelUnderTest:
    name: str
    kernel: Any
    """A ``PagedKernel``, perhaps with the optional attributes of the contract."""
    device: str


@dataclass(frozen=True)
class MakeAllocator:
    name: str
    factory: Callable[[int, int], BlockAllocator]

    def __call__(self, num_blocks: int, block_size: int) -> BlockAllocator:
        return self.factory(num_blocks, block_size)
