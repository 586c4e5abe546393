"""A plain kernel that is right, in pieces, so that a wrong one differs from it in a few lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch


class RightKernel:
    """Gathers each sequence's slots in order and computes dense attention in float32."""

    features: Set[str] = frozenset(
        {"lse", "empty_rows", "dirty_tail", "relabel_bitwise", "capacity_bitwise", "run_bitwise"}
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        return None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return {"p": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        def launch(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            rows = [self.attend_row(spec, batch, row, query, pools) for row in range(batch.num_seqs)]
            outs, lses = zip(*rows, strict=True)
            return (torch.cat(outs), torch.cat(lses)) if spec.return_lse else torch.cat(outs)

        return launch

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, query_len = int(batch.query_start[row]), batch.query_lens_host[row]
        context_len = self.context_len(batch, row)
        slots = torch.tensor(self.slots(spec, batch, row, context_len), dtype=torch.long)
        heads = [self.key_head(head, spec) for head in range(spec.num_q_heads)]
        key = pools.key.flatten(0, 1)[slots][:, heads].float()
        value = pools.value.flatten(0, 1)[slots][:, heads].float()
        scores = torch.einsum("qhd,khd->hqk", query[start : start + query_len].float(), key) * self.scale(spec)
        visible = self.visible(query_len, len(slots))
        out, lse = self.softmax(scores, visible, value)
        return out.to(query.dtype), lse

    def softmax(
        self, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = scores.masked_fill(~visible, -math.inf)
        lse = torch.logsumexp(scores, 2) if scores.shape[2] else scores.new_full(scores.shape[:2], -math.inf)
        p = torch.where(visible, (scores - lse[..., None]).exp(), 0.0)
        return torch.einsum("hqk,khd->qhd", p, value), lse.T

    def context_len(self, batch: PagedBatch, row: int) -> int:
        return batch.context_lens_host[row]

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        size, table = spec.block_size, self.block_table(batch, row)
        return [table[t // size] * size + t % size for t in range(context_len)]

    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        table: list[int] = batch.block_tables[row].tolist()
        return table

    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return head // spec.group_size

    def scale(self, spec: AttentionSpec) -> float:
        return spec.scale_value

    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        """[query_len, num_keys]: query row i stands at position num_keys - query_len + i."""
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(num_keys - query_len)

    def write(
        self, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor, pools: KVPools, slot_mapping: torch.Tensor
    ) -> None:
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                block, offset = divmod(slot, spec.block_size)
                pools.key[block, offset], pools.value[block, offset] = key[token], value[token]

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            pools.key[destination], pools.value[destination] = pools.key[source], pools.value[source]
