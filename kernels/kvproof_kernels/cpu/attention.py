"""Paged attention on a CPU: the plan of a batch, and its launch.

The blocks are read in place through the block table, never gathered. Work is laid out over sequences, query rows, key
heads and parts of long contexts (``problem``), each item runs an online softmax (``work``, ``softmax``, ``products``),
and the thread that finishes the last part of a group merges them (``finish``). All arithmetic is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvproof_kernels.cpu.checks import check_launch, check_plan
from kvproof_kernels.cpu.formats import PAIRS, Formats, formats_of
from kvproof_kernels.cpu.layout import lay_out
from kvproof_kernels.cpu.problem import Problem, in_bytes
from kvproof_kernels.cpu.run import FAILED, run
from kvproof_kernels.cpu.scratch import scratch_for
from kvproof_kernels.cpu.threads import num_threads, run_on_all


class PagedAttention:
    """One planned batch; can be called again on new contents of the same tensors.

    Args:
        block_tables: [num_seqs, max_blocks] int32, read at each call; entries past a context are not.
        context_lens, query_lens: of each sequence; its query rows are the last positions of its context.
        scale: multiplies q·k. softcap: cap·tanh(s / cap). window: visible keys, the query's own included.
        alibi_slopes, sinks: [num_q_heads]. value_scale: multiplies the output.

    Raises:
        ValueError: a number, shape, stride or device that is not supported, by name.
        TypeError: a dtype that is not.
    """

    def __init__(
        self,
        block_tables: Tensor,
        context_lens: Sequence[int],
        query_lens: Sequence[int],
        *,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        block_size: int,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: Sequence[float] | None = None,
        sinks: Sequence[float] | None = None,
        value_scale: float = 1.0,
    ) -> None:
        self.heads = (num_q_heads, num_kv_heads, head_dim, value_dim, block_size)
        asked = {"window": window, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
        check_plan(block_tables, context_lens, query_lens, self.heads, asked)
        self.block_tables = block_tables
        self.options: dict[str, Any] = {
            "causal": causal,
            "window": window or 0,
            "scale": np.float32(scale),
            "softcap": np.float32(softcap or 0),
            "value_scale": np.float32(value_scale),
            "has_slopes": alibi_slopes is not None,
            "has_sinks": sinks is not None,
        }
        self.per_head = [np.asarray(given or [0.0] * num_q_heads, np.float32) for given in (alibi_slopes, sinks)]
        self.threads = num_threads()
        self._lay_out(context_lens, query_lens)

    def _lay_out(self, context_lens: Sequence[int], query_lens: Sequence[int]) -> None:
        num_q_heads, num_kv_heads, head_dim, value_dim, _ = self.heads
        group_size = num_q_heads // num_kv_heads
        self.context_lens = np.array(context_lens, np.int64)
        self.query_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(query_lens, np.int64))])
        self.items, num_parts = lay_out(
            self.context_lens,
            self.query_starts,
            group_size,
            num_kv_heads,
            self.options["causal"],
            self.options["window"],
            self.threads,
        )
        head_rows = -(-self.items[:, 2] * group_size // 4) * 4
        rows = int(((self.items[:, 4] - self.items[:, 3]) * head_rows).max(initial=1))
        heads = int((self.items[:, 4] - self.items[:, 3]).max(initial=1))
        self.scratch = [scratch_for(rows, heads, head_dim, value_dim) for _ in range(self.threads)]
        kept = np.where(num_parts > 1, num_parts, 0)
        self.groups = np.stack([num_parts, np.cumsum(kept) - kept], 1)
        self.parts = (
            np.empty((kept.sum(), rows, self.scratch[0].out.shape[1]), np.float32),
            np.empty((kept.sum(), 2, rows), np.float32),
        )
        self.counters = np.zeros(FAILED + 1 + len(self.groups), np.int64)
        shape = (int(self.query_starts[-1]), num_q_heads)
        self.query = torch.empty(*shape, head_dim)
        self.result = torch.empty(*shape, value_dim)

    def __call__(
        self, query: Tensor, key_pool: Tensor, value_pool: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``query`` [num_tokens, num_q_heads, head_dim] and pools [num_blocks, block_size, num_kv_heads, dim] of any
        strides but the last, which is 1, to ``out`` [num_tokens, num_q_heads, value_dim] in the query's type, rounded
        to nearest even, and the LSE [num_tokens, num_q_heads] float32, natural logarithm."""
        if out is None:
            out = torch.empty(self.result.shape, dtype=query.dtype)
        check_launch(query, key_pool, value_pool, out, self.heads, len(self.query))
        lse = torch.empty(out.shape[:2])
        formats = formats_of(query.dtype, key_pool.dtype)
        rows = self._query_rows(query, formats)
        result = out if out.dtype == torch.float32 and out.is_contiguous() else self.result
        problem = self._problem(key_pool, value_pool)
        self.counters[:] = 0
        tensors = (rows, *self.per_head, result.numpy(), lse.numpy())
        plan = (self.items, self.groups, self.context_lens, self.query_starts, self.counters)
        run_on_all(
            lambda thread: run(problem, formats, *plan, *tensors, self.scratch[thread], *self.parts), self.threads
        )
        self._raise_for_table(key_pool)
        if result is not out:
            out.copy_(result)
        return out, lse

    def _query_rows(self, query: Tensor, formats: Formats) -> Any:
        """As compiled code reads them: float32, or the bits of bfloat16."""
        query = query.detach().contiguous()
        if formats.query is PAIRS:
            return query.view(torch.uint16).numpy()
        return (query if query.dtype == torch.float32 else self.query.copy_(query)).numpy()

    def _problem(self, key: Tensor, value: Tensor) -> Problem:
        num_q_heads, num_kv_heads, head_dim, value_dim, block_size = self.heads
        table_row, table_entry = (self.block_tables.element_size() * stride for stride in self.block_tables.stride())
        return Problem(
            key=in_bytes(key),
            value=in_bytes(value),
            table=self.block_tables.data_ptr(),
            table_row=table_row,
            table_entry=table_entry,
            num_blocks=len(key),
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            group_size=num_q_heads // num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            **self.options,
        )

    def _raise_for_table(self, key_pool: Tensor) -> None:
        if self.counters[FAILED]:
            seq = int(self.counters[FAILED]) - 1
            raise ValueError(
                f"block_tables {list(self.block_tables.shape)}: a block of sequence {seq}, within its context of "
                f"{self.context_lens[seq]} tokens, is outside the pool of {len(key_pool)} blocks"
            )
