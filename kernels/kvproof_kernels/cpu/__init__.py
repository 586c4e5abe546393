"""Paged attention compiled for a CPU, reading the blocks in place (``attention``), and what fills them (``moves``)."""

from kvproof_kernels.cpu.attention import PagedAttention
from kvproof_kernels.cpu.layout import TILE
from kvproof_kernels.cpu.moves import copy_blocks, write_rows

__all__ = ["TILE", "PagedAttention", "copy_blocks", "write_rows"]
