"""Attention through a block table in the ten lines that a user would write; a test hands them over as a file."""

import torch


def attend(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale):
    out = query.new_empty(*query.shape[:2], value_pool.shape[3])
    size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    for i, n in enumerate(context_lens.tolist()):
        q, t = query[query_start[i] : query_start[i + 1]].float(), torch.arange(n)
        block, slot = block_tables[i, t // size].long(), t % size
        k, v = (pool[block, slot].float().repeat_interleave(group, 1) for pool in (key_pool, value_pool))
        s = torch.einsum("qhd,khd->hqk", q, k) * scale
        p = s.masked_fill(~torch.ones(s.shape[1:], dtype=bool).tril(n - len(q)), -torch.inf).softmax(-1)
        out[query_start[i] : query_start[i + 1]] = torch.einsum("hqk,khd->qhd", p, v)
    return out
