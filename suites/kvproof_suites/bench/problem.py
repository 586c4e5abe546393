"""What attention kernels are timed on: the data of a launch, how often it is drawn anew, and what must come out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.bench.heads import INT8_SCALE, Heads
from kvproof_suites.bench.points import Point
from kvproof_suites.bench.timing import pinned_threads
from kvproof_suites.kernel.oracle import Attended, attend_dense

JUDGED_SCORES = 2**16
"""Products of a query and a key that are done again in float64 for one problem, about."""
FEWEST_JUDGED = 8


@dataclass(frozen=True)
class Problem:
    """One launch's sequences and heads, and how many of their leading tokens the sequences have in common."""

    point: Point
    heads: Heads
    shared_tokens: int = 0

    @property
    def num_kv_tokens(self) -> int:
        """Live tokens, those in common once."""
        return sum(self.point.context_lens) - self.shared_tokens * (len(self.point.seqs) - 1)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of the live tokens, once; latent ones hold both."""
        heads = self.heads
        dims = heads.head_dim + (0 if heads.mla else heads.value_dim or heads.head_dim)
        return self.num_kv_tokens * heads.num_kv_heads * dims * itemsize(heads.stored_dtype)

    def moved_bytes(self, block_size: int | None) -> int:
        """What one launch must move: live K and V once, query and output, and the block tables (None: dense)."""
        heads = self.heads
        rows = self.point.num_tokens * heads.num_q_heads * (heads.head_dim + (heads.value_dim or heads.head_dim))
        entries = 0 if block_size is None else sum(-(-length // block_size) for length in self.point.context_lens)
        return self.kv_bytes + rows * itemsize(heads.dtype) + 4 * entries

    @property
    def num_flops(self) -> int:
        """Of the two matrix products over the keys that a causal query sees; a multiplication and an addition are 2."""
        seen = sum(query * (2 * context - query + 1) // 2 for context, query in self.point.seqs)
        return 2 * seen * self.heads.num_q_heads * (self.heads.head_dim + (self.heads.value_dim or self.heads.head_dim))


@dataclass(frozen=True)
class Contents:
    """Random data of one launch."""

    query: Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    keys: tuple[Tensor, ...]
    """Of each sequence, [context_len, num_kv_heads, head_dim] in the pool's type."""
    values: tuple[Tensor, ...]


@functools.lru_cache(maxsize=2)
def draw(problem: Problem, num_turns: int, device: str, seed: int) -> tuple[Contents, ...]:
    """``num_turns`` launches of the problem. The same numbers whatever is in common: that part is overwritten."""
    generator, heads = torch.Generator(device).manual_seed(seed), problem.heads
    value_dim = heads.value_dim or heads.head_dim

    def normal(num_rows: int, num_heads: int, dim: int, dtype: str) -> Tensor:
        drawn = torch.randn(num_rows, num_heads, dim, generator=generator, device=device)
        if dtype == "int8":
            drawn = (drawn / INT8_SCALE).round().clamp(-127, 127)
        return drawn.to(_dtype(dtype))

    def stored(dim: int) -> tuple[Tensor, ...]:
        rows = [normal(length, heads.num_kv_heads, dim, heads.stored_dtype) for length in problem.point.context_lens]
        for row in rows[1:]:
            row[: problem.shared_tokens] = rows[0][: problem.shared_tokens]
        return tuple(rows)

    turns = []
    for _ in range(num_turns):
        query = normal(problem.point.num_tokens, heads.num_q_heads, heads.head_dim, heads.dtype)
        keys = stored(heads.head_dim)
        values = tuple(key[..., :value_dim] for key in keys) if heads.mla else stored(value_dim)
        turns.append(Contents(query, keys, values))
    return tuple(turns)


@dataclass(frozen=True)
class Expected:
    """Of one launch, at the places that are judged: all of a small problem, spread evenly over a large one."""

    rows: Tensor
    """[judged] row of the query"""
    kv_heads: Tensor
    """[judged] key head, whose whole group of query heads is judged"""
    out: Tensor
    """[judged, group_size, value_dim] float64"""
    bound: Tensor

    def distance(self, output: Tensor) -> float:
        """Of the worst element of ``output`` [num_tokens, num_q_heads, value_dim], in error bounds of law G1."""
        group = self.out.shape[1]
        grouped = output.unflatten(1, (-1, group))
        got = grouped[self.rows.to(output.device), self.kv_heads.to(output.device)].double().cpu()
        return float(((got - self.out).abs() / self.bound).nan_to_num(nan=torch.inf).max())


@functools.lru_cache(maxsize=8)
def expect(problem: Problem, num_turns: int, device: str, seed: int, declared: Arithmetic) -> tuple[Expected, ...]:
    """What each launch must give, to within the error that the declared arithmetic allows."""
    with pinned_threads(1):  # thousands of small operations: more threads would wait for each other
        return tuple(
            expect_one(problem, contents, contents.query, declared, judged_places(problem, num_turns))
            for contents in draw(problem, num_turns, device, seed)
        )


def expect_one(
    problem: Problem, contents: Contents, query: Tensor, declared: Arithmetic, places: Sequence[tuple[int, int]]
) -> Expected:
    """Of ``query`` over the keys of ``contents``, at ``places``."""
    attended = [_attend(problem, contents, query, declared, *place) for place in places]
    rows, kv_heads = zip(*places, strict=True)
    return Expected(
        torch.tensor(rows),
        torch.tensor(kv_heads),
        torch.cat([one.out for one in attended]),
        torch.cat([one.out_bound for one in attended]),
    )


def judged_places(problem: Problem, num_turns: int) -> list[tuple[int, int]]:
    """(query row, key head), the first and the last among them."""
    num_places = problem.point.num_tokens * problem.heads.num_kv_heads
    longest = max(problem.point.context_lens)
    num_judged = min(num_places, max(FEWEST_JUDGED, JUDGED_SCORES // num_turns // longest))
    chosen = torch.linspace(0, num_places - 1, num_judged, dtype=torch.float64).round().long().unique()
    return [divmod(place, problem.heads.num_kv_heads) for place in chosen.tolist()]


def _attend(
    problem: Problem, contents: Contents, query: Tensor, declared: Arithmetic, row: int, kv_head: int
) -> Attended:
    """One row and one key head, by the keys that the row sees."""
    spec = problem.heads.spec(block_size=1)
    seq, index = locate(problem.point.query_lens, row)
    context_len, query_len = problem.point.seqs[seq]
    seen = context_len - query_len + index + 1
    group = slice(kv_head * spec.group_size, (kv_head + 1) * spec.group_size)
    own = slice(kv_head, kv_head + 1)
    keys, values = contents.keys[seq][:seen, own], contents.values[seq][:seen, own]
    alone = replace(spec, num_q_heads=spec.group_size, num_kv_heads=1)
    return attend_dense(query[row : row + 1, group], keys, values, alone, declared)


def locate(query_lens: Sequence[int], row: int) -> tuple[int, int]:
    """(sequence, index within its queries) of a row of the query."""
    for seq, length in enumerate(query_lens):
        if row < length:
            return seq, row
        row -= length
    raise IndexError(f"no query row {row}")


def itemsize(dtype: str) -> int:
    return _dtype(dtype).itemsize


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
