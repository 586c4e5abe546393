"""Whether a case fits this machine, asked before any of it is made: what does not fit is counted as not run."""

from __future__ import annotations

import math

import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.pages import num_pool_blocks, pool_orders, untouched_pool
from kvproof_suites.memory import lack_of_room
from kvproof_suites.outcome import not_run_here
from kvproof_suites.under_test import KernelUnderTest

NUM_COPIES = 3
"""Of a pool: for two launches that are compared, and between guards."""
NUM_DRAWN = 6
"""Of its contents on the host in float32: drawn, as codes, moved, looked up for an answer in float64."""
NUM_SPREADS = 6
"""Of the oracle's largest tensor that are alive at once (``oracle.weight_rounding``)."""


def require_room(under_test: KernelUnderTest, case: Case) -> None:
    pools, host = NUM_COPIES * pool_bytes(case), NUM_DRAWN * contents_bytes(case) + NUM_SPREADS * spread_bytes(case)
    needs = {"cpu": host + pools} if under_test.device == "cpu" else {"cpu": host, under_test.device: pools}
    for device, num_bytes in needs.items():
        if (reason := lack_of_room("its pools and their oracle", num_bytes, device)) is not None:
            not_run_here(reason)


def large_pools(under_test: KernelUnderTest, case: Case, num_blocks: int) -> KVPools:
    """Unwritten pools of ``num_blocks``. For a CPU they may be larger than its memory, which is virtual: only pages of
    it that are written or read take any. On a device they take all of it."""
    shape = (num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    num_bytes = 2 * math.prod(shape) * getattr(torch, case.dtype).itemsize
    if under_test.device != "cpu" and (reason := lack_of_room("its pools", num_bytes, under_test.device)) is not None:
        not_run_here(reason)
    orders = pool_orders(under_test.kernel)
    try:
        return KVPools(*(untouched_pool(shape, order, case.dtype, under_test.device) for order in orders))
    except RuntimeError as error:  # of the system: no address space (ulimit -v), or no memory that is only promised
        not_run_here(f"its pools take {num_bytes / 1e9:.1f} GB: {str(error).splitlines()[0]}")


def num_slots(case: Case) -> int:
    return num_pool_blocks(case) * case.block_size


def pool_bytes(case: Case) -> int:
    spec = case.spec
    dims = spec.head_dim + (0 if spec.mla else spec.value_dim_value)
    return num_slots(case) * spec.num_kv_heads * dims * getattr(torch, spec.kv_dtype or spec.dtype).itemsize


def contents_bytes(case: Case) -> int:
    """Keys and values of every slot, and a query for every position, in float32."""
    spec = case.spec
    tokens = sum(max(context_len, query_len) for context_len, query_len in case.seqs)
    dims = spec.head_dim + spec.value_dim_value
    return 4 * dims * (num_slots(case) * spec.num_kv_heads + tokens * spec.num_q_heads)


def spread_bytes(case: Case) -> int:
    """[num_queries, context, value_dim] float64 of the longest sequence."""
    return max(8 * query_len * context_len * case.spec.value_dim_value for context_len, query_len in case.seqs)
