"""Tensor parallel: each rank pages its shard of the heads, and together they give the bits of one rank with all."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import PagedAttention

WORLD = 2
CONTEXT_LENS, QUERY_LENS = [40, 700, 3], [1, 5, 3]
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 8, 4, 64, 16, 60


def contents() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, and all tokens' keys and values, [num_tokens, heads, head_dim]; the block tables."""
    random = torch.Generator().manual_seed(0)
    query = torch.randn(sum(QUERY_LENS), NUM_Q_HEADS, HEAD_DIM, generator=random).half()
    key, value = torch.randn(2, sum(CONTEXT_LENS), NUM_KV_HEADS, HEAD_DIM, generator=random).half()
    width = -(-max(CONTEXT_LENS) // BLOCK_SIZE)
    blocks = torch.randperm(NUM_BLOCKS, generator=random).to(torch.int32)
    tables = torch.zeros(len(CONTEXT_LENS), width, dtype=torch.int32)
    for row, context_len in enumerate(CONTEXT_LENS):
        count = -(-context_len // BLOCK_SIZE)
        tables[row, :count], blocks = blocks[:count], blocks[count:]
    return query, key, value, tables


def attend_shard(rank: int, world: int) -> torch.Tensor:
    """Write and attend with the heads of one rank: [num_tokens, num_q_heads / world, head_dim]."""
    query, key, value, tables = contents()
    query, key, value = (rows.chunk(world, dim=1)[rank] for rows in (query, key, value))
    pools = torch.full((2, NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS // world, HEAD_DIM), torch.nan).half()
    slots = [
        int(tables[row, token // BLOCK_SIZE]) * BLOCK_SIZE + token % BLOCK_SIZE
        for row, context_len in enumerate(CONTEXT_LENS)
        for token in range(context_len)
    ]
    write_cache(key, value, *pools, torch.tensor(slots))
    heads = (NUM_Q_HEADS // world, NUM_KV_HEADS // world)
    geometry = Geometry(*heads, HEAD_DIM, HEAD_DIM, BLOCK_SIZE, torch.float16, torch.float16, HEAD_DIM**-0.5)
    return PagedAttention(geometry, tables, CONTEXT_LENS, QUERY_LENS)(query, *pools)[0]


def gather_from_ranks(rank: int, folder: Path) -> None:
    """Run by each rank in a process of its own; the first one keeps what all of them computed."""
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), WORLD, rank)
    try:
        mine = attend_shard(rank, WORLD).contiguous()
        shards = [torch.empty_like(mine) for _ in range(WORLD)]
        dist.all_gather(shards, mine)
        if rank == 0:
            torch.save(torch.cat(shards, dim=1), folder / "gathered.pt")
    finally:
        dist.destroy_process_group()


def test_shards_of_the_heads_give_the_bits_of_all_heads(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE) for rank in range(WORLD)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors.decode()
    assert torch.equal(torch.load(tmp_path / "gathered.pt"), attend_shard(0, 1))


if __name__ == "__main__":
    gather_from_ranks(int(sys.argv[2]), Path(sys.argv[1]))
