"""Wrong kernels that keep something from one plan or launch to the next: tables, workspaces, options, leftovers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class PlanOnce(RightKernel):
    """The first plan of a shape is kept: later steps read the tables of an earlier one."""

    def __init__(self) -> None:
        self.plans: dict[Any, Launch] = {}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        shape = (spec, batch.num_seqs, batch.num_tokens, tuple(batch.block_tables.shape), batch.context_lens_host)
        return self.plans.setdefault(shape, super().plan(spec, batch))


class PlansShareOneBuffer(RightKernel):
    """A plan writes its tables where the one before it, not yet run, has put its own."""

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        self.tables = batch.block_tables
        return super().plan(spec, batch)

    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        table: list[int] = self.tables[min(row, len(self.tables) - 1)].tolist()
        return table + [table[-1]] * max(0, batch.block_tables.shape[1] - len(table))


class BatchSizeOfTheFirstPlan(RightKernel):
    """Static buffers have the first batch's size, and a smaller one does not fit."""

    num_seqs: int | None = None

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        self.num_seqs = self.num_seqs or batch.num_seqs
        if batch.num_seqs < self.num_seqs:
            raise RuntimeError(f"the size of tensor a ({batch.num_seqs}) must match the size of b ({self.num_seqs})")
        return super().plan(spec, batch)


class WorkspaceOfTheFirstPlan(RightKernel):
    """Rows of a later batch that find no room in the workspace are dropped."""

    num_rows: int | None = None

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        self.num_rows = self.num_rows or batch.num_tokens
        return super().plan(spec, batch)

    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        result[self.num_rows :] = 0
        return super().deliver(result, out)


class LengthOfTheFirstPlan(RightKernel):
    """A buffer as long as the first step needed is indexed by the length of a later one."""

    longest: int | None = None

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        self.longest = self.longest or batch.max_context_len
        return super().plan(spec, batch)

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        right[:, self.longest :] = False
        return right


class WidthOfTheFirstTable(RightKernel):
    """The table is copied into a buffer of the first one's width."""

    width: int | None = None

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        self.width = self.width or batch.block_tables.shape[1]
        if batch.block_tables.shape[1] > self.width:
            raise RuntimeError(f"a table of {batch.block_tables.shape[1]} columns does not fit {self.width}")
        return super().plan(spec, batch)


class WindowOfAnEarlierPlan(RightKernel):
    """A plan without an option does not take back that of an earlier one."""

    window: int | None = None

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        self.window = spec.window or self.window
        return super().visible(replace(spec, window=self.window) if spec.causal else spec, query_len, num_keys)


class SumIntoADirtyWorkspace(RightKernel):
    """The accumulator is not cleared: a little of the launch before is left in it."""

    leftover: torch.Tensor | float = 0.0

    def softmax(self, spec: AttentionSpec, *args: torch.Tensor) -> Partial:
        out, lse = super().softmax(spec, *args)
        out[0] += self.leftover
        self.leftover = 0.01 * float(out.nan_to_num()[0].abs().mean())
        return out, lse


class MaskedLanesHoldTheLastLoad(RightKernel):
    """A masked load without a default: lanes past the end hold what the load before left in the registers."""

    lanes: float = 0.0

    def gather(self, spec: AttentionSpec, pools: KVPools, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = super().gather(spec, pools, slots)
        lanes, self.lanes = self.lanes, float(value.nan_to_num().sum())
        return key, value * (1 + math.sin(lanes) * (len(slots) % 16 != 0) * 0.01)


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(PlanOnce, "D2", "alibaba/rtp-llm#378", "a later step reads the tables of an earlier one"),
        Wrong(PlansShareOneBuffer, "G14", "sgl-project/mini-sglang#103", "a plan overwrites that of another launch"),
        Wrong(BatchSizeOfTheFirstPlan, "G14", "huggingface/transformers#42960", "a batch may not shrink"),
        Wrong(
            WorkspaceOfTheFirstPlan,
            "G14",
            "flashinfer-ai/flashinfer#3360",
            "a larger batch overflows the workspace of a smaller",
        ),
        Wrong(LengthOfTheFirstPlan, "G14", "microsoft/onnxruntime-genai#2583", "a context may not grow"),
        Wrong(WidthOfTheFirstTable, "G14", "GeeeekExplorer/nano-vllm#258", "a table may not become wider"),
        Wrong(WindowOfAnEarlierPlan, "G14", "flashinfer-ai/flashinfer#1028", "an option outlives its plan"),
        Wrong(SumIntoADirtyWorkspace, "G5", "ours", "an accumulator is not cleared"),
        Wrong(MaskedLanesHoldTheLastLoad, "G5", "triton-lang/triton#737", "masked lanes hold what was there before"),
    )
}
