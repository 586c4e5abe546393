"""Whether a tile gives attention: data with two answers that are known, for any configuration of the kernel.

A tile is an order of rounding, so that outputs of two tiles differ, and comparing them says little. Here they are held
against float64, within what rounding explains; and against a needle, exactly: where a query is a multiple of one key,
and keys are signs, all other weights vanish, so that the output is the value of that one token, bit for bit. Slots that
no sequence owns hold NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import PagedAttention
from kvproof_kernels.tiles import Configuration

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
ACCUMULATOR_UNIT = 2.0**-23
"""Of sums in float32: tensor cores cut off what they do not keep, which is one bit worse than rounding."""
NEEDLE = 16
"""A key of D signs then scores 16·√D, another one 16·√D · z / √D with z normal: from D = 64 the difference is 32 even
at six standard deviations, and exp(-32) times a context of 2^20 tokens is below half a unit of float32."""
SMALLEST_HEAD_DIM = 64
NUM_JUDGED_ROWS = 16


@dataclass(frozen=True)
class Workload:
    """Sequences of one length; the queries are the last ``query_len`` positions of each."""

    batch: int
    query_len: int
    context_len: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.query_len} rows of {self.context_len:,} tokens"


class Trial:
    """Pools and queries on a device, drawn once.

    Args:
        geometry: of the model; without window, soft cap, ALiBi and sinks, and with scales of 1.
        workload: what each turn attends to.
        device: where.
        num_turns: batches that take turns over one pool, so that each finds the cache full of others.
        seed: of all that is drawn.

    Raises:
        ValueError: the needle would not be exact for this geometry.
    """

    def __init__(self, geometry: Geometry, workload: Workload, device: torch.device, num_turns: int, seed: int) -> None:
        if (reason := why_not(geometry)) is not None:
            raise ValueError(reason)
        self.geometry, self.workload, self.device = geometry, workload, device
        self.random = torch.Generator(device).manual_seed(seed)
        width = -(-workload.context_len // geometry.block_size)
        num_blocks = num_turns * workload.batch * width
        order = torch.randperm(num_blocks, generator=self.random, device=device)
        self.tables = order.view(num_turns, workload.batch, width).int()
        self.key_pool = self.signs(num_blocks, geometry.head_dim).to(geometry.kv_dtype)
        if geometry.mla:
            self.value_pool = self.key_pool[..., : geometry.value_dim]
        else:
            values = self.signs(num_blocks, geometry.value_dim) * self.uniform(num_blocks, geometry.value_dim)
            self.value_pool = values.to(geometry.kv_dtype)
        self.poison()
        num_rows, heads = workload.batch * workload.query_len, geometry.num_q_heads
        drawn = torch.randn(num_rows, heads, geometry.head_dim, generator=self.random, device=device)
        self.query = drawn.to(geometry.dtype)

    def signs(self, num_blocks: int, dim: int) -> Tensor:
        size = (num_blocks, self.geometry.block_size, self.geometry.num_kv_heads, dim)
        return torch.randint(2, size, generator=self.random, device=self.device, dtype=torch.int8) * 2 - 1

    def uniform(self, num_blocks: int, dim: int) -> Tensor:
        """From 1/2 to 3/2, in a type that holds no more than it must; whole numbers from 1 to 3 for int8."""
        size = (num_blocks, self.geometry.block_size, self.geometry.num_kv_heads, dim)
        if self.geometry.kv_dtype == torch.int8:
            return torch.randint(1, 4, size, generator=self.random, device=self.device, dtype=torch.int8)
        return torch.rand(size, generator=self.random, device=self.device, dtype=torch.float16) + 0.5

    def poison(self) -> None:
        """The slots behind each context."""
        used = self.workload.context_len % self.geometry.block_size
        if used:
            last = self.tables[:, :, -1].flatten().long()
            for pool in (self.key_pool, self.value_pool):
                pool[last, used:] = torch.tensor(127.0 if pool.dtype == torch.int8 else math.nan).to(pool.dtype)

    def planned(self, configuration: Configuration | None = None) -> list[Callable[[], tuple[Tensor, Tensor]]]:
        """The launch of each turn, planned; None: what a user gets."""
        lens = ([self.workload.context_len] * self.workload.batch, [self.workload.query_len] * self.workload.batch)
        plans = [PagedAttention(self.geometry, table, *lens, configuration=configuration) for table in self.tables]
        return [lambda plan=plan: plan(self.query, self.key_pool, self.value_pool) for plan in plans]  # type: ignore[misc]

    def fault(self, configuration: Configuration) -> str | None:
        """What is wrong with the outputs of the first turn, or None."""
        return self._astray(configuration) or self._off(configuration)

    def _astray(self, configuration: Configuration) -> str | None:
        """The needle: every row and head looks for a token of its own."""
        rows, positions = self._rows(), self._positions()
        heads = torch.arange(self.geometry.num_q_heads, device=self.device)
        drawn = torch.rand(len(rows), len(heads), generator=self.random, device=self.device)
        tokens = (drawn * (positions[:, None] + 1)).long()
        slots = self._slots(rows[:, None].expand_as(tokens), tokens)
        of = (heads // self.geometry.group_size).expand_as(slots)
        query = (NEEDLE * self.key_pool.flatten(0, 1)[slots, of].to(self.geometry.dtype)).contiguous()
        wanted = self.value_pool.flatten(0, 1)[slots, of].to(self.geometry.dtype)
        out, _ = self._attend(configuration, query)
        wrong = (out != wanted).any(-1)
        if not wrong.any():
            return None
        row, head = wrong.nonzero()[0].tolist()
        return (
            f"{int(wrong.sum())} of {wrong.numel()} needles are missed; row {row}, head {head} should have found token "
            f"{int(tokens[row, head])} of {int(positions[row]) + 1}"
        )

    def _off(self, configuration: Configuration) -> str | None:
        """Random queries, against float64, for a sample of the rows."""
        out, lse = self._attend(configuration, self.query)
        rows, positions = self._rows(), self._positions()
        for row in torch.linspace(0, len(rows) - 1, min(NUM_JUDGED_ROWS, len(rows))).round().long().tolist():
            tokens = torch.arange(int(positions[row]) + 1, device=self.device)
            slots = self._slots(rows[row].expand_as(tokens), tokens)
            keys, values = (pool.flatten(0, 1)[slots] for pool in (self.key_pool, self.value_pool))
            want = attend_row(self.query[row], keys, values, self.geometry.scale, configuration.value_type)
            off = max(
                worst((out[row].double() - want.out).abs() / want.out_bound),
                worst((lse[row].double() - want.lse).abs() / want.lse_bound),
            )
            if off > 1:
                return f"row {row} is {off:.3g} times further from float64 than rounding explains"
        return None

    def _attend(self, configuration: Configuration, query: Tensor) -> tuple[Tensor, Tensor]:
        lens = ([self.workload.context_len] * self.workload.batch, [self.workload.query_len] * self.workload.batch)
        plan = PagedAttention(self.geometry, self.tables[0], *lens, configuration=configuration)
        return plan(query, self.key_pool, self.value_pool)

    def _rows(self) -> Tensor:
        """[num_rows] the sequence of each query row."""
        return torch.arange(self.workload.batch, device=self.device).repeat_interleave(self.workload.query_len)

    def _positions(self) -> Tensor:
        last = torch.arange(self.workload.query_len, device=self.device) - self.workload.query_len
        return (self.workload.context_len + last).repeat(self.workload.batch)

    def _slots(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        block_size = self.geometry.block_size
        return self.tables[0].long()[sequences, tokens // block_size] * block_size + tokens % block_size


@dataclass(frozen=True)
class Attended:
    """Of one query row, in float64."""

    out: Tensor
    """[num_q_heads, value_dim]"""
    lse: Tensor
    """[num_q_heads]"""
    out_bound: Tensor
    lse_bound: Tensor


def attend_row(query: Tensor, keys: Tensor, values: Tensor, scale: float, value_type: torch.dtype) -> Attended:
    """Dense attention of one row over all it sees, and how far a right kernel may be off, to first order.

    With u the unit of sums: a score is off by a = u·(D·Σ|q·k|·scale + 4·(|s| + max|s|) + 4) with its scaling, its
    difference to the maximum and the exponential; weights and their sum by twice that; n terms add n·u, in P·V and in
    the sum; P and the output are rounded once each, and a weight below the smallest number of P's type is lost.

    Args:
        query: [num_q_heads, head_dim] in the type of the output.
        keys: [num_tokens, num_kv_heads, head_dim]
        values: [num_tokens, num_kv_heads, value_dim]
        scale: multiplies q·k.
        value_type: to which P is rounded.
    """
    u, n, dtype = ACCUMULATOR_UNIT, len(keys), query.dtype
    k, v = (rows.double().transpose(0, 1) for rows in (keys, values))  # [num_kv_heads, n, dim]
    q = query.double().unflatten(0, (len(k), -1))  # [num_kv_heads, group, dim]
    scores, sizes = q @ k.mT * scale, q.abs() @ k.abs().mT * scale  # [num_kv_heads, group, n]
    lse, weights = torch.logsumexp(scores, -1), torch.softmax(scores, -1)
    out, weight = weights @ v, weights @ v.abs()
    largest = scores.abs().amax(-1, keepdim=True)
    off = (u * (q.shape[-1] * sizes + 4 * (scores.abs() + largest) + 4)).amax(-1, keepdim=True)
    lost = SMALLEST[value_type] * v.abs().sum(1, keepdim=True)
    out_bound = UNIT[dtype] * out.abs() + SMALLEST[dtype] + lost
    out_bound = out_bound + (UNIT[value_type] + 2 * (n + 4) * u + 2 * off) * weight
    lse_bound = off[..., 0] + u * (2 * lse.abs() + n + 4)
    return Attended(*(by_head.flatten(0, 1) for by_head in (out, lse, out_bound, lse_bound)))


def worst(ratios: Tensor) -> float:
    return float(ratios.nan_to_num(nan=math.inf).max())


def why_not(geometry: Geometry) -> str | None:
    """What of a model would blur the needle, or None."""
    moved = geometry.window or geometry.softcap or geometry.alibi_slopes or geometry.sinks
    if moved or geometry.kv_scales != "tensor" or (geometry.key_scale, geometry.value_scale) != (1.0, 1.0):
        return "a trial takes plain attention: no window, soft cap, ALiBi, sinks, and scales of 1"
    return (
        None if geometry.head_dim >= SMALLEST_HEAD_DIM else f"head_dim {geometry.head_dim}: {SMALLEST_HEAD_DIM} or more"
    )
