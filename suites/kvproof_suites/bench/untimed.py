"""Kernels that can't be timed here, why, and what the compiler says of them instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.bench.decode_step import Shape
from kvproof_suites.under_test import KernelUnderTest

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
RESOURCE_FIELDS = ("target", "registers", "spill_bytes", "shared_bytes", "num_warps")


def why_not_timed(under_test: KernelUnderTest, shape: Shape, block_size: int, table: str) -> str | None:
    """The reason, or None. An optional attribute ``interpreted`` of a kernel says that its time means nothing."""
    kernel = under_test.kernel
    if getattr(kernel, "interpreted", False):
        return "runs in Triton's interpreter on this device, whose time says nothing about a GPU"
    if (reason := kernel.unsupported(shape.spec(block_size))) is not None:
        return f"unsupported: {reason}"
    longest = getattr(kernel, "max_context_len", None)
    if longest is not None and shape.context_len > longest:
        return f"declares contexts longer than {longest} impractical, this one has {shape.context_len}"
    if table == "dense" and not hasattr(kernel, "dense"):
        return "has no dense(spec, query, key, value): its own kernel without a block table"
    return None


def compiled_resources(under_test: KernelUnderTest, spec: AttentionSpec) -> list[dict[str, Any]] | None:
    """Registers, spills and shared memory of each target, from a kernel that offers ``resources(spec, targets)``."""
    compiled = getattr(under_test.kernel, "resources", None)
    if compiled is None:
        return None
    return [_fields(entry) for entry in compiled(spec, TARGETS)]


def _fields(entry: Any) -> dict[str, Any]:
    found: Mapping[str, Any] = asdict(entry) if is_dataclass(entry) and not isinstance(entry, type) else dict(entry)
    return {name: found[name] for name in RESOURCE_FIELDS}
