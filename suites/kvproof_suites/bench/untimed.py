"""Kernels that can't be timed here, why, and what the compiler says of them instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.bench.cells import Cell
from kvproof_suites.under_test import KernelUnderTest

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
RESOURCE_FIELDS = ("target", "registers", "spill_bytes", "shared_bytes", "num_warps")
OCCUPANCY = "resident_warps"
"""From an ``occupancy`` with ``warps``, where an entry has one."""

NEEDED = {"write": "write", "copy": "copy_blocks"}
"""What a group of benchmarks calls besides ``plan``."""


def why_not_timed(under_test: KernelUnderTest, cell: Cell) -> str | None:
    """The reason, or None. An optional attribute ``interpreted`` of a kernel says that its time means nothing."""
    kernel, spec = under_test.kernel, cell.heads.spec(cell.block_size)
    if getattr(kernel, "interpreted", False):
        return "runs in Triton's interpreter on this device, whose time says nothing about a GPU"
    if (missing := missing_features(spec, cell.mode) - set(kernel.features)) and cell.group != "copy":
        return f"does not declare {', '.join(sorted(missing))}"
    if (reason := kernel.unsupported(spec)) is not None:
        return f"unsupported: {reason}"
    if cell.group in NEEDED and cell.table == "dense":
        return "there is no table to write or copy through"
    if cell.group in NEEDED:
        return None if hasattr(kernel, NEEDED[cell.group]) else f"has no {NEEDED[cell.group]}"
    longest = getattr(kernel, "max_context_len", None)
    if longest is not None and max(cell.point.context_lens) > longest:
        return f"declares contexts longer than {longest} impractical, this one has {max(cell.point.context_lens)}"
    return why_not_dense(kernel, cell) if cell.table == "dense" else None


def missing_features(spec: AttentionSpec, mode: str) -> set[str]:
    """What a kernel must declare before it is asked for this."""
    stored = spec.kv_dtype or ""
    wanted = {"mla": spec.mla, "fp8": stored.startswith("float8"), "int8": stored == "int8", "graph": mode == "graph"}
    return {name for name, needed in wanted.items() if needed}


def why_not_dense(kernel: Any, cell: Cell) -> str | None:
    if not hasattr(kernel, "dense"):
        return "has no dense(spec, query, key, value): its own kernel without a block table"
    if cell.group != "decode" or len(set(cell.point.context_lens)) > 1 or cell.heads.mla:
        return "the dense form of the contract is for a decode step of equal contexts with keys and values apart"
    return None


def told_instead(under_test: KernelUnderTest, cell: Cell) -> dict[str, Any]:
    """Of a kernel whose time means nothing here: what its compiler says of attention on these heads."""
    if not getattr(under_test.kernel, "interpreted", False) or cell.group in NEEDED:
        return {}
    return {"resources": compiled_resources(under_test, cell.heads.spec(cell.block_size))}


def compiled_resources(under_test: KernelUnderTest, spec: AttentionSpec) -> list[dict[str, Any]] | None:
    """Registers, spills and shared memory of each target, from a kernel that offers ``resources(spec, targets)``."""
    compiled = getattr(under_test.kernel, "resources", None)
    if compiled is None:
        return None
    return [_fields(entry) for entry in compiled(spec, TARGETS)]


def _fields(entry: Any) -> dict[str, Any]:
    found: Mapping[str, Any] = asdict(entry) if is_dataclass(entry) and not isinstance(entry, type) else dict(entry)
    told = {name: found[name] for name in RESOURCE_FIELDS}
    return told | ({OCCUPANCY: entry.occupancy.warps} if hasattr(entry, "occupancy") else {})
