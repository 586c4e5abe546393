"""Small paged batches whose unowned bytes are poison, and what attention over them must give, row by row."""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch


def build_case(
    spec: AttentionSpec,
    context_lens: list[int],
    query_lens: list[int],
    *,
    seed: int = 0,
    poison: float = math.nan,
    padding_id: int = -1,
    extra_blocks: int = 3,
    extra_columns: int = 2,
) -> SimpleNamespace:
    """Random keys and values, laid through shuffled blocks; every byte that no sequence owns holds ``poison``.

    Gives spec, batch, pools, query [num_tokens, num_q_heads, head_dim], and keys and values as each sequence's own
    list of dense [context_len, num_kv_heads, head_dim] tensors.
    """
    random = torch.Generator().manual_seed(seed)
    dtype, kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype or spec.dtype)
    needed = [-(-length // spec.block_size) for length in context_lens]
    num_blocks = sum(needed) + extra_blocks
    free = torch.randperm(num_blocks, generator=random).tolist()
    tables = torch.full((len(needed), max(needed, default=0) + extra_columns), padding_id, dtype=torch.int32)
    key, value = (
        torch.full((num_blocks, spec.block_size, spec.num_kv_heads, dim), poison, dtype=kv_dtype)
        for dim in (spec.head_dim, spec.value_dim_value)
    )
    keys, values = [], []
    for i, (length, blocks) in enumerate(zip(context_lens, needed, strict=True)):
        table = [free.pop() for _ in range(blocks)]
        tables[i, :blocks] = torch.tensor(table, dtype=torch.int32)
        for dense, pool in ((keys, key), (values, value)):
            dense.append(torch.randn(length, *pool.shape[2:], generator=random).to(kv_dtype))
            for position in range(length):
                pool[table[position // spec.block_size], position % spec.block_size] = dense[-1][position]
    query = torch.randn(sum(query_lens), spec.num_q_heads, spec.head_dim, generator=random).to(dtype)
    batch = PagedBatch(
        block_tables=tables,
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        query_start=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        slot_mapping=torch.full((sum(query_lens),), -1),
        context_lens_host=tuple(context_lens),
        query_lens_host=tuple(query_lens),
    )
    return SimpleNamespace(spec=spec, batch=batch, pools=KVPools(key, value), query=query, keys=keys, values=values)


def share_pool(case: SimpleNamespace) -> SimpleNamespace:
    """Of a case with ``spec.mla``: one pool, the values being the first dims of the keys."""
    dim = case.spec.value_dim_value
    case.pools = KVPools(case.pools.key, case.pools.key[..., :dim])
    case.values = [key[..., :dim] for key in case.keys]
    return case


def attend_row(spec: AttentionSpec, query: Tensor, position: int, head: int, keys: Tensor, values: Tensor) -> tuple:
    """Attention of one query row ``[head_dim]`` of one head at ``position``, in float64."""
    kv_head = head // spec.group_size
    logits, weighted = [], []
    for t in range(keys.shape[0]):
        hidden = spec.causal and t > position
        if hidden or (spec.window is not None and t <= position - spec.window):
            continue
        score = float(query.double() @ keys[t, kv_head].double()) * spec.scale_value * spec.k_scale
        if spec.softcap is not None:
            score = spec.softcap * math.tanh(score / spec.softcap)
        if spec.alibi_slopes is not None:
            score += spec.alibi_slopes[head] * (t - position)
        logits.append(score)
        weighted.append(values[t, kv_head].double() * spec.v_scale)
    if not logits:
        lse = -math.inf if spec.sinks is None else spec.sinks[head]
        return torch.zeros(spec.value_dim_value, dtype=torch.float64), lse
    all_logits = torch.tensor([*logits, *([] if spec.sinks is None else [spec.sinks[head]])], dtype=torch.float64)
    weights = torch.softmax(all_logits, 0)[: len(logits)]
    return weights @ torch.stack(weighted), float(torch.logsumexp(all_logits, 0))


def attend_densely(case: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """Output [num_tokens, num_q_heads, value_dim] and LSE [num_tokens, num_q_heads] of a case, in float64."""
    outs, lses, row = [], [], 0
    for i, length in enumerate(case.batch.query_lens_host):
        for j in range(length):
            position = case.batch.context_lens_host[i] - length + j
            heads = [
                attend_row(case.spec, case.query[row, head], position, head, case.keys[i], case.values[i])
                for head in range(case.spec.num_q_heads)
            ]
            outs.append(torch.stack([out for out, _ in heads]))
            lses.append([lse for _, lse in heads])
            row += 1
    return torch.stack(outs), torch.tensor(lses, dtype=torch.float64)


def attend_rows(
    spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sequences: Any, starts: Any
) -> tuple[Tensor, Tensor]:
    """What a double of a library answers: all rows of ``query``, each attended to by itself through its blocks.

    ``sequences`` are (blocks, tokens), ``starts`` where the rows of each begin. Output in the type of the query and
    natural LSE in float32, both in the order of the query.
    """
    outs, lses = [], []
    for i, (blocks, length) in enumerate(sequences):
        keys, values = (pool[blocks].flatten(0, 1)[:length] for pool in (key, value))
        own = range(starts[i], starts[i + 1])
        for row in own:
            position = length - len(own) + row - own[0]
            pieces = [attend_row(spec, q, position, head, keys, values) for head, q in enumerate(query[row])]
            outs.append(torch.stack([out for out, _ in pieces]))
            lses.append([lse for _, lse in pieces])
    return torch.stack(outs).to(query.dtype), torch.tensor(lses, dtype=torch.float32)


def through_table(tables: Tensor, lengths: Tensor, block_size: int) -> list[tuple[list[int], int]]:
    """The ``sequences`` of ``attend_rows``, of a block table; entries past the last block are not looked at."""
    assert tables.dtype == lengths.dtype == torch.int32
    assert tables.stride(-1) == 1
    pairs = zip(tables.tolist(), lengths.tolist(), strict=True)
    return [(table[: -(-length // block_size)], length) for table, length in pairs]


@pytest.fixture(scope="session")
def paged():
    """``paged.case(spec, context_lens, query_lens)``, ``paged.expected(case)``, and what doubles of libraries need."""
    doubles = {"row": attend_row, "rows": attend_rows, "sequences": through_table}
    return SimpleNamespace(case=build_case, expected=attend_densely, latent=share_pool, **doubles)


@pytest.fixture(scope="session")
def recorded():
    """The module of recorded signatures of kernels."""
    return module_beside("recorded_signatures")


@pytest.fixture(scope="session")
def recorded_flashinfer():
    """The module of recorded signatures of FlashInfer's wrappers."""
    return module_beside("recorded_flashinfer")


@pytest.fixture(scope="session")
def recorded_flashinfer_pieces():
    """The module of recorded signatures of FlashInfer's cascade and latent attention."""
    return module_beside("recorded_flashinfer_pieces")


@pytest.fixture
def flashinfer_calls(monkeypatch, paged):
    """The calls that a double of ``flashinfer`` gets and answers, each bound to the recorded signature."""
    recorded = [module_beside(name) for name in ("recorded_flashinfer", "recorded_flashinfer_pieces")]
    monkeypatch.setattr("kvproof_impls.flashinfer_pages.WORKSPACE_BYTES", 4096)
    return module_beside("flashinfer_double").install(monkeypatch, paged, recorded)


@pytest.fixture(scope="session")
def recorded_allocators():
    """The module of recorded signatures of block managers."""
    return module_beside("recorded_allocators")


@pytest.fixture(scope="session")
def recorded_attention():
    """The module of recorded calls of transformers' and OpenVINO's attention."""
    return module_beside("recorded_attention")


def module_beside(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(
    params=[
        "reference:ReferenceKernel",
        "torch_gather:TorchKernel",
        "flash_attention:FlashAttentionKernel",
        "flashinfer_wrappers:FlashInferKernel",
    ]
)
def built_in_kernel(request):
    module, _, name = request.param.partition(":")
    return getattr(importlib.import_module(f"kvproof_impls.{module}"), name)()


@pytest.fixture(params=["paged", "paged_python"])
def our_allocators(request: pytest.FixtureRequest) -> Any:
    """The package of our compiled allocator, then of the plain Python one: what is promised of one holds for both."""
    if request.param == "paged":
        pytest.importorskip("numba")
    return importlib.import_module(f"kvproof_impls.{request.param}")


@pytest.fixture
def our_paged(our_allocators: Any) -> Any:
    return our_allocators.PagedAllocator


@pytest.fixture
def our_windowed(our_allocators: Any) -> Any:
    return our_allocators.WindowedAllocator
