"""Churned block tables: the order of blocks that a replayed workload leaves behind, for laws and benchmarks.

A pool that has served for a while hands out blocks in an order that neither counting up nor shuffling gives: runs of
neighbours, broken by what others still hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof_impls.registry import load
from kvproof_traces import BlockTables, TablesError, Workload, generate, read_tables, replay

WORKLOAD = Workload(num_requests=96, mean_prompt_tokens=300, mean_output_tokens=60)


def made_up_churn(num_blocks: int = 1024, block_size: int = 16) -> BlockTables:
    """What our allocator's tables look like late in a generated workload; the same ones every time."""
    allocator = load("paged").allocator
    assert allocator is not None
    churned = replay(generate(WORKLOAD, seed=0), allocator(num_blocks, block_size)).churned
    assert churned is not None, "a workload of ordinary requests leaves tables behind"
    return churned


def read_churn(path: Path) -> BlockTables:
    try:
        return read_tables(path)
    except (OSError, TablesError) as error:
        raise pytest.UsageError(f"--churned: {error}") from None


def physical_order(tables: BlockTables) -> list[int]:
    """Every block of the live tables once, in the order in which sequences hold them."""
    return list(dict.fromkeys(block for table in tables.block_tables for block in table))
