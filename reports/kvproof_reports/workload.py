"""What two benchmark records must share to be comparable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof_reports.schema import BENCHMARK

WORKLOAD = tuple(name for name, field in BENCHMARK.items() if field.identity and name != "implementation")
"""All identity fields but the implementation."""

SHAPE = tuple(name for name in WORKLOAD if name not in ("block_size", "table"))
"""What stays fixed along a curve of throughput against block size."""

Key = tuple[Any, ...]


def workload(record: Mapping[str, Any]) -> Key:
    return tuple(record[name] for name in WORKLOAD)


def shape(record: Mapping[str, Any]) -> Key:
    return tuple(record[name] for name in SHAPE)


def shape_title(record: Mapping[str, Any]) -> str:
    """For people: ``decode, 4 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu``."""
    if record["group"] == "allocator":
        return f"allocator, {record['device']}"
    return (
        f"{record['group']}, {record['batch']:,} sequences of {record['context_len']:,} tokens, "
        f"heads {record['num_q_heads']}/{record['num_kv_heads']}, head dim {record['head_dim']}, "
        f"{record['dtype']}, {record['device']}"
    )


def shape_code(record: Mapping[str, Any]) -> str:
    """For metric names: ``4q1s1024_h32-8_d128_float32_cpu``; batch, query, context as vLLM's benchmark has them."""
    parts = (
        f"{record['batch']}q1s{record['context_len']}",
        f"h{record['num_q_heads']}-{record['num_kv_heads']}",
        f"d{record['head_dim']}",
        record["dtype"],
        record["device"],
    )
    return record["device"] if record["group"] == "allocator" else "_".join(parts)
