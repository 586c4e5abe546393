"""A plain kernel that is right, in pieces, so that a wrong one differs from it in a few lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

Partial = tuple[torch.Tensor, torch.Tensor]
"""out [query_len, num_q_heads, value_dim] and lse [query_len, num_q_heads], both float32"""


class RightKernel:
    """Gathers each sequence's slots in order and computes dense attention in float32, with every option of a spec."""

    features: Set[str] = frozenset(
        {"window", "softcap", "alibi", "sinks", "lse", "fp8", "empty_rows", "out", "dirty_tail"}
        | {"relabel_bitwise", "capacity_bitwise", "batch_bitwise", "run_bitwise"}
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        return None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return {"p": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        def launch(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            rows = [self.attend_row(spec, batch, row, query, pools) for row in range(batch.num_seqs)]
            outs, lses = zip(*rows, strict=True)
            result = self.deliver(torch.cat(outs), out)
            return (result, torch.cat(lses)) if spec.return_lse else result

        return launch

    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return result if out is None else out.copy_(result)

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        slots = torch.tensor(self.slots(spec, batch, row, self.context_len(batch, row)), dtype=torch.long)
        key, value = self.gather(spec, pools, slots)
        rows = query[self.query_rows(batch, row)].to(torch.float32, copy=True)  # aligned alike in every batch
        scores = self.scores(spec, rows, key)
        out, lse = self.softmax(spec, scores, self.visible(spec, len(rows), len(slots)), value)
        return out.to(query.dtype), lse

    def query_rows(self, batch: PagedBatch, row: int) -> slice:
        return slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))

    def context_len(self, batch: PagedBatch, row: int) -> int:
        return batch.context_lens_host[row]

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        size, table = spec.block_size, self.block_table(batch, row)
        return [table[t // size] * size + t % size for t in range(context_len)]

    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        table: list[int] = batch.block_tables[row].tolist()
        return table

    def gather(self, spec: AttentionSpec, pools: KVPools, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values by query head, [len(slots), num_q_heads, dim] float32, their scales applied."""
        heads = [self.key_head(head, spec) for head in range(spec.num_q_heads)]
        key, value = (self.rows(spec, pool, slots)[:, heads].float() for pool in (pools.key, pools.value))
        return key * spec.k_scale, value * spec.v_scale

    def rows(self, spec: AttentionSpec, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return pool[slots // spec.block_size, slots % spec.block_size]

    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return head // spec.group_size

    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[num_q_heads, query_len, num_keys]: scaled, then capped, then biased."""
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.scale(spec)
        if spec.softcap is not None:
            scores = spec.softcap * (scores / spec.softcap).tanh()
        if spec.alibi_slopes is not None:
            scores = scores + torch.tensor(spec.alibi_slopes)[:, None, None] * distance(len(query), len(key))
        return scores

    def scale(self, spec: AttentionSpec) -> float:
        return spec.scale_value

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        """[query_len, num_keys]"""
        away = distance(query_len, num_keys)
        visible = away <= 0 if spec.causal else torch.ones_like(away, dtype=torch.bool)
        return visible if spec.window is None else visible & (away > -spec.window)

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        """Against the row's peak, so that logits of any size lose nothing; -inf for a row without any."""
        logits = torch.cat([scores.masked_fill(~visible, -math.inf), self.sinks(spec, scores)], 2)
        peak = peaks(logits)
        p = (logits - peak).exp()
        total = p.sum(2, keepdim=True)
        out = torch.einsum("hqk,khd->qhd", p[..., : len(value)], value)
        return out / total.clamp(min=1e-30).transpose(0, 1), (peak + total.log()).squeeze(2).T

    def sinks(self, spec: AttentionSpec, scores: torch.Tensor) -> torch.Tensor:
        """Logits without a value, [num_q_heads, query_len, 0 or 1]."""
        if spec.sinks is None:
            return scores.new_empty(*scores.shape[:2], 0)
        return torch.tensor(spec.sinks)[:, None, None].expand(*scores.shape[:2], 1)

    def write(
        self, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor, pools: KVPools, slot_mapping: torch.Tensor
    ) -> None:
        rows = [(pools.key, self.encode(key, pools.key, spec.k_scale))]
        rows += [(pools.value, self.encode(value, pools.value, spec.v_scale))]
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                for pool, encoded in rows:
                    pool[slot // spec.block_size, slot % spec.block_size] = encoded[token]

    def encode(self, rows: torch.Tensor, pool: torch.Tensor, scale: float) -> torch.Tensor:
        """Codes of an 8-bit pool, saturated; other pools hold the rows as they are."""
        if pool.element_size() > 1:
            return rows
        largest = torch.finfo(pool.dtype).max
        return (rows.float() / scale).clamp(-largest, largest).to(pool.dtype)

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            pools.key[destination], pools.value[destination] = pools.key[source], pools.value[source]


def distance(query_len: int, num_keys: int) -> torch.Tensor:
    """Key position - query position, [query_len, num_keys]; query row i stands at num_keys - query_len + i."""
    return torch.arange(num_keys)[None] - torch.arange(num_keys - query_len, num_keys)[:, None]


def peaks(logits: torch.Tensor) -> torch.Tensor:
    """The largest of the last dim, which is kept; 0 where there is none."""
    if not logits.shape[-1]:
        return logits.new_zeros(*logits.shape[:-1], 1)
    largest = logits.amax(-1, keepdim=True)
    return torch.where(largest == -math.inf, 0.0, largest)
