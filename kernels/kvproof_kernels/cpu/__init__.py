"""Paged attention compiled for a CPU, reading the blocks in place; see ``attention``."""

from kvproof_kernels.cpu.attention import PagedAttention
from kvproof_kernels.cpu.layout import TILE

__all__ = ["TILE", "PagedAttention"]
