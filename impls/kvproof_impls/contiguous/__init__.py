"""Reservation before paging: a buddy allocator, with three ways to decide how much a sequence gets."""

from kvproof_impls.contiguous.allocator import MaxAllocator, OracleAllocator, Pow2Allocator

__all__ = ["MaxAllocator", "OracleAllocator", "Pow2Allocator"]
