"""What two benchmark records must share to be comparable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof_reports.schema import BENCHMARK

WORKLOAD = tuple(name for name, field in BENCHMARK.items() if field.identity and name != "implementation")
"""All identity fields but the implementation."""

SHAPE = tuple(name for name in WORKLOAD if name not in ("block_size", "table"))
"""What stays fixed along a curve of throughput against block size."""

CONDITION = ("cache", "mode")
"""How a launch was timed: with a cold or a hot cache, eagerly or by replay of a graph. Older runs don't say."""

Key = tuple[Any, ...]


def workload(record: Mapping[str, Any]) -> Key:
    return tuple(record[name] for name in WORKLOAD)


def shape(record: Mapping[str, Any]) -> Key:
    return tuple(record[name] for name in SHAPE)


def shape_title(record: Mapping[str, Any]) -> str:
    """For people: ``decode 4q1s1k, heads 32/8, head dim 128, float32, cpu``; what a record does not say is left out."""
    if record["group"] == "allocator":
        return f"allocator, {record['device']}"
    if record.get("point") is not None:
        told = [f"{record['group']} {record['point']}"]
    elif record["batch"] is not None and record["context_len"] is not None:
        told = [record["group"], f"{record['batch']:,} sequences of {record['context_len']:,} tokens"]
    else:
        told = [record["group"]]
    parts = (
        ("heads {num_q_heads}/{num_kv_heads}", ("num_q_heads", "num_kv_heads")),
        ("{num_kv_heads} key heads", () if record["num_q_heads"] is not None else ("num_kv_heads",)),
        ("head dim {head_dim}", ("head_dim",)),
        ("values {value_dim}", ("value_dim",)),
        ("{dtype}", ("dtype",)),
        ("pools {kv_dtype}", ("kv_dtype",)),
        ("{device}", ("device",)),
    )
    known = [words for words, names in parts if names and all(record.get(name) is not None for name in names)]
    return ", ".join(told + [words.format(**record) for words in known])


def condition_title(record: Mapping[str, Any]) -> str:
    """``cold, eager``; empty for a record that does not say."""
    return ", ".join(str(record[name]) for name in CONDITION if record.get(name) is not None)


def shape_code(record: Mapping[str, Any]) -> str:
    """For metric names: ``4q1s1024_h32-8_d128_float32_cpu``; the point as vLLM's benchmark has it, and what else a row
    has: one without keys and values, such as that of step tensors, has neither heads nor dims."""
    if record["group"] == "allocator":
        return str(record["device"])
    heads = f"h{record['num_q_heads']}-{record['num_kv_heads']}" if record["num_q_heads"] is not None else None
    dim = f"d{record['head_dim']}" if record["head_dim"] is not None else None
    point = record.get("point") or f"{record['batch']}q1s{record['context_len']}"
    parts = (point, heads, dim, record["dtype"], record["device"], record.get("cache"), record.get("mode"))
    return "_".join(str(part) for part in parts if part is not None)
