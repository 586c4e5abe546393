"""The cases that the kernel laws run on: small, named, and on the boundaries where paging goes wrong.

A case is one batch of sequences, each (context length, query length): query length 1 is decode, equal lengths are
prefill, anything between is a chunk. Distinct specs cost one compilation each on a GPU, so that the grids reuse them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from kvproof_impls.contract import AttentionSpec

LAYOUTS = ("identity", "reversed", "shuffled")


@dataclass(frozen=True, repr=False)
class Case:
    seqs: tuple[tuple[int, int], ...]
    """(context length, query length) of each sequence."""
    block_size: int = 16
    num_kv_heads: int = 1
    group_size: int = 2
    head_dim: int = 64
    dtype: str = "float16"
    kv_dtype: str | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    kv_scales: str = "tensor"
    """What one scale serves: "tensor", "head" or "token"; those of the latter two are drawn."""
    layout: str = "shuffled"
    shared_blocks: int = 0
    """Leading blocks that every sequence has in common."""
    return_lse: bool = False
    value_dim: int | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    mla: bool = False
    """One pool: the values are the first ``value_dim`` dims of the keys."""

    @property
    def features(self) -> tuple[str, ...]:
        """What a kernel must declare for this case."""
        asked = {"lse": self.return_lse, "window": self.window, "softcap": self.softcap, "alibi": self.alibi}
        asked |= {"sinks": self.sinks, "fp8": (self.kv_dtype or "").startswith("float8"), "mla": self.mla}
        asked |= {"int8": self.kv_dtype == "int8", f"{self.kv_scales}_scales": self.kv_scales != "tensor"}
        return tuple(name for name, on in asked.items() if on)

    @property
    def spec(self) -> AttentionSpec:
        num_q_heads = self.num_kv_heads * self.group_size
        return AttentionSpec(
            num_q_heads=num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            kv_scales=self.kv_scales,
            mla=self.mla,
            value_dim=self.value_dim,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            alibi_slopes=tuple(2.0 ** -(1 + head % 8) for head in range(num_q_heads)) if self.alibi else None,
            sinks=tuple((head % 3 - 1) * 1.5 for head in range(num_q_heads)) if self.sinks else None,
            return_lse=self.return_lse,
        )

    def __repr__(self) -> str:
        """The constructor call, without what is as by default."""
        told = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Case({', '.join(told)})"

    def __str__(self) -> str:
        seqs = "_".join(f"{query}q{context}k" for context, query in self.seqs[:3])
        more = f"_and{len(self.seqs) - 3}" if len(self.seqs) > 3 else ""
        heads = f"h{self.num_kv_heads * self.group_size}x{self.num_kv_heads}"
        options = {"dv": self.value_dim, "scale": self.scale, "window": self.window, "softcap": self.softcap}
        told = [f"{name}{value:g}" for name, value in options.items() if value is not None]
        told += [name for name, on in (("alibi", self.alibi), ("sinks", self.sinks), ("lse", self.return_lse)) if on]
        told += [name for name, on in (("mla", self.mla), (self.kv_dtype, self.kv_dtype)) if on and name]
        told += [f"scales a {self.kv_scales}"] if self.kv_scales != "tensor" else []
        told += [f"shared{self.shared_blocks}"] if self.shared_blocks else []
        base = f"{seqs}{more}-b{self.block_size}-{heads}-d{self.head_dim}-{self.dtype}-{self.layout}"
        return "-".join([base, *told])


def boundary_lengths(block_size: int) -> tuple[int, ...]:
    return tuple(sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size + 1}))


def decode(*context_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((context_len, 1) for context_len in context_lens)


def prefill(*context_lens: int) -> tuple[tuple[int, int], ...]:
    return tuple((context_len, context_len) for context_len in context_lens)


CHUNKED = ((33, 7), (40, 16), (17, 2))
MIXED = ((20, 1), (17, 17), (33, 5), (16, 1))

BASE = Case(decode(*boundary_lengths(16)))

# The first case is the first verdict that a kernel's author sees: one sequence, both sides of one block boundary.
SMOKE = (
    Case(decode(17)),
    BASE,
    Case(prefill(1, 16, 17)),
    Case(CHUNKED),
    Case(MIXED),
    *(replace(BASE, layout=layout) for layout in LAYOUTS if layout != BASE.layout),
    Case(decode(*boundary_lengths(1)), block_size=1),
    Case(decode(*boundary_lengths(3)), block_size=3),
    Case(((7, 7), (10, 4), (4, 1)), block_size=3),
    Case(((257, 257), (20, 1)), block_size=256),
    Case(((385, 129), (64, 1)), block_size=256),
    Case(((520, 8),), block_size=512),
    Case(MIXED, head_dim=80),
    *(Case(MIXED, dtype=dtype) for dtype in ("bfloat16", "float32")),
)

MLA: dict[str, Any] = {"mla": True, "head_dim": 80, "value_dim": 64, "group_size": 4}
DEEPSEEK: dict[str, Any] = {"mla": True, "head_dim": 576, "value_dim": 512, "group_size": 16}
"""The latent attention of DeepSeek-V2 and its successors, with as many heads as a rank of 8 has."""

# Far from 1 and from one another, and powers of two: a scale that is lost, doubled or swapped shows at once.
SCALES: dict[str, Any] = {"k_scale": 0.25, "v_scale": 0.5}
A_HEAD: dict[str, Any] = {"kv_scales": "head", "num_kv_heads": 2}
A_TOKEN: dict[str, Any] = {"kv_scales": "token", "kv_dtype": "int8"}

LATENT = (Case(MIXED, **MLA), Case(decode(17, 33), block_size=3, **MLA), Case(decode(17), **DEEPSEEK))
LATENT_FULL = (
    *(Case(((40, 1), (33, 5)), dtype=dtype, **DEEPSEEK) for dtype in ("float16", "bfloat16", "float32")),
    Case(decode(129, 64), block_size=64, **DEEPSEEK),
    Case(((33, 7), (40, 16)), window=16, **MLA),
)

SPECULATIVE = (
    Case(((18, 2), (33, 5), (16, 1), (20, 8)), group_size=4),
    Case(((17, 3), (40, 1), (32, 8)), group_size=7),
)
"""Draft tokens behind each sequence's last, on both sides of block boundaries, beside sequences without any."""

SPECULATIVE_FULL = (
    *(Case(((16, q), (17, q), (32 + q, q), (40, 1)), group_size=group) for q in range(2, 9) for group in (1, 4, 7)),
    Case(((129, 4), (128, 8), (65, 1)), num_kv_heads=2, group_size=4, head_dim=128, dtype="bfloat16"),
)

EDGES = (
    Case(((272, 16), (257, 32)), window=17),
    Case(((300, 20), (20, 1)), window=1),
    Case(MIXED, softcap=30.0, alibi=True, sinks=True, window=7),
)
"""Windows that begin or end beside a block boundary, far from the start; and every option at once."""

EDGES_FULL = (
    *(Case(((513, 9), (257, 4), (1, 1)), window=window) for window in (1, 15, 16, 17)),
    *(Case(((100, 9), (64, 1), (33, 2)), window=window, block_size=8) for window in (1, 7, 8, 9)),
    Case(CHUNKED, softcap=30.0, alibi=True, sinks=True, window=5, num_kv_heads=2, group_size=4),
    Case(decode(129, 17, 1), softcap=20.0, alibi=True, sinks=True, window=16, head_dim=256),
    Case(MIXED, softcap=30.0, alibi=True, sinks=True, window=7, dtype="bfloat16"),
)

OPTIONS = (
    *(Case(MIXED, window=window) for window in (1, 5, 16, 20)),
    Case(((56, 8),), window=16),
    Case(MIXED, softcap=30.0),
    Case(MIXED, alibi=True),
    Case(MIXED, sinks=True),
    Case(MIXED, scale=0.3),
    Case(MIXED, value_dim=32),
    Case(decode(17, 33), value_dim=32),
    Case(decode(17), value_dim=128),
    Case(decode(129), window=32),
    *LATENT,
    *EDGES,
)

GEOMETRY = (
    *(Case(decode(17), num_kv_heads=2, group_size=group) for group in (1, 2, 3, 4, 5, 6, 7, 8)),
    *(Case(((21, 5),), num_kv_heads=2, group_size=group) for group in (3, 8)),
    *(Case(decode(17), head_dim=head_dim) for head_dim in (80, 96, 128, 192, 256)),
    Case(decode(17), num_kv_heads=3),
    Case(decode(17), num_kv_heads=8, group_size=1),
    Case(decode(17), group_size=16),
    Case(decode(17), num_kv_heads=2, group_size=24),
)

FULL = (
    Case(decode(255, 256, 257), block_size=256),
    *(Case(decode(*boundary_lengths(size)), block_size=size) for size in (2, 5, 8, 32, 64, 128)),
    *(Case(((size + 1, size + 1), (2 * size, size), (size, 1)), block_size=size) for size in (1, 2, 8, 32, 64)),
    *(Case(decode(63, 64, 65, 127, 128, 129), dtype=dtype) for dtype in ("float16", "bfloat16", "float32")),
    *(Case(((129, 65), (64, 64), (65, 3)), head_dim=head_dim) for head_dim in (64, 80, 128)),
    *(Case(MIXED, head_dim=head_dim, dtype="bfloat16") for head_dim in (64, 96, 128, 192, 256)),
    *(Case(((65, 33), (40, 8), (33, 1)), block_size=32, dtype=dtype) for dtype in ("float16", "bfloat16", "float32")),
)

GEOMETRY_FULL = (
    # Some kernels take blocks of 32 tokens alone; what they do with heads and options has to be seen there.
    *(Case(((40, 9), (33, 1)), block_size=32, num_kv_heads=2, group_size=group) for group in (1, 3, 8)),
    *(Case(((40, 9), (33, 1)), block_size=32, head_dim=head_dim) for head_dim in (80, 128, 256)),
    *(Case(MIXED, num_kv_heads=2, group_size=group) for group in (1, 2, 3, 5, 6, 7, 8)),
    *(Case(MIXED, num_kv_heads=3, group_size=2, head_dim=head_dim) for head_dim in (64, 80, 96, 128, 192, 256)),
)

OPTIONS_FULL = (
    *(Case(((70, 70), (33, 1), (64, 20)), window=window, block_size=8) for window in (3, 8, 33, 64, 100)),
    *(Case(decode(15, 16, 17, 33), softcap=50.0, dtype=dtype) for dtype in ("float16", "bfloat16", "float32")),
    Case(MIXED, alibi=True, sinks=True, window=7),
    Case(MIXED, group_size=4, num_kv_heads=2, sinks=True, softcap=40.0),
    Case(MIXED, head_dim=128, value_dim=64),
    Case(CHUNKED, scale=1.0, dtype="float32"),
    *(Case(MIXED, block_size=32, window=window) for window in (7, 33)),
    Case(MIXED, block_size=32, alibi=True),
    Case(MIXED, block_size=32, sinks=True, window=7),
    Case(MIXED, block_size=32, alibi=True, window=7),
    Case(MIXED, block_size=32, value_dim=32, scale=0.3),
    *LATENT_FULL,
    *EDGES_FULL,
)


def by_tier(smoke: Iterable[Case] = SMOKE, full: Iterable[Case] = FULL) -> list[ParameterSet]:
    """Parameters of a law test, each case once, the larger ones marked with the tier that pays for them."""
    first = list(dict.fromkeys(smoke))
    later = [case for case in dict.fromkeys(full) if case not in first]
    marked = [(case, ()) for case in first] + [(case, (pytest.mark.tier("full"),)) for case in later]
    return [pytest.param(case, id=str(case), marks=marks) for case, marks in marked]
