"""The contract: the shapes that an allocator and a kernel have.

Nothing here needs to be imported by an implementation. The protocols are checked by attribute, absent methods are
absent capabilities, and results are plain tuples, lists and tensors. The dataclasses are what the suite hands over.

Importing this module does not import torch; tensors appear in annotations only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Copies = Sequence[tuple[int, int]]
"""(source block, destination block) pairs to copy before writing; no destination is another pair's source or
destination, so that they may be made in any order or at once."""


@runtime_checkable
class BlockAllocator(Protocol):
    """Decides which sequence owns which block of the pool.

    A *block* holds ``block_size`` tokens, a *slot* one token: token ``t`` of a sequence lives in slot
    ``block_table[t // block_size] * block_size + t % block_size``. Sequence ids are opaque and hashable; tokens are
    ids, a list or an int32 array. One past int32 may be refused with ValueError, and never be cut off.

    Errors: ``MemoryError`` when blocks run out, ``KeyError`` for an unknown or duplicate sequence id, ``ValueError``
    for a bad number. Every failure leaves the state as it was.

    Capabilities, present or absent: ``fork``, ``commit``, ``reserve``, ``truncate``, ``swap_out`` and ``swap_in``,
    ``cached_prefix``, ``reset_prefix_cache``, ``append_step``, ``commit_step``, ``preempt``, ``window``.

    ``reserves`` is "max", "pow2" or "oracle" where a sequence gets all its blocks when it is admitted: its table is as
    long as the reservation, ``allocate`` also takes ``max_tokens``, prompt and output of the request, which "pow2"
    and "oracle" reserve by, and without it the longest length is reserved.

    ``fork(parent, child)`` shares every full block; it may copy the partly filled last one, at once or when one of the
    two writes.
    ``append_step(seqs, tokens)`` takes one token a row and gives a PagedBatch, its ``copies`` to be made before the
    step writes. Its tensors may be buffers: they keep their contents until the call after the next, so that a step
    in flight is not overwritten; an allocator that makes them anew in each step says so with ``rebuilds_step = True``,
    and who does not read them calls ``append`` instead. ``commit_step(seqs)`` commits each of ``seqs`` in one call, or
    none when one is unknown. ``preempt(seq)`` frees a sequence that will come back under its id, to be computed again:
    what ``allocate`` then finds cached is no hit to be proud of, and ``counters``, where there are any, tell it apart
    (``kvproof_impls.counters.Counters`` has the names). ``swap_out(seq)``
    gives (device, host) copies, ``swap_in(seq)`` (host, device) ones, host ids in ``range(num_host_blocks)``; in
    between ``seq`` has no table and knows only ``swap_in`` and ``free``.
    With ``window``, positions that the first token handed out last can't see (``window - 1`` before it are seen) may
    have no block: the table names the reserved ``null_block`` there.
    ``eviction = "lru"`` declares that of the blocks that nobody owns those without content are handed out first, then
    the least recently used, a child before its parent.
    """

    num_blocks: int
    """Blocks that sequences can own."""
    pool_blocks: int
    """Blocks in the pool: ids lie in ``range(pool_blocks)``. The difference is reserved (null block, padding)."""
    block_size: int
    """Tokens a block."""

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """Admit ``seq`` with its prompt; return how many leading tokens were found cached. ``key``: salt, adapter."""
        ...

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Make slots for the next tokens; return the copies to make before they are written."""
        ...

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns."""
        ...

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """Physical block of each logical block of ``seq``."""
        ...

    def num_free_blocks(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        ...

    def can_allocate(self, num_tokens: int) -> bool:
        """True must succeed, False must fail, for a new sequence of which nothing is cached."""
        ...


KV_SCALES = ("tensor", "head", "token")


@dataclass(frozen=True)
class AttentionSpec:
    """What a model fixes about attention; hashable, so that cases that need one compilation are grouped."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str = "float16"
    """Of query and output: "float16", "bfloat16" or "float32"."""
    kv_dtype: str | None = None
    """Of the pools; None: the same as ``dtype``."""
    value_dim: int | None = None
    """None: the same as ``head_dim``."""
    scale: float | None = None
    """Multiplies q·k; None: 1/sqrt(head_dim)."""
    causal: bool = True
    window: int | None = None
    """Visible keys, the query's own included; goes with ``causal``."""
    softcap: float | None = None
    """cap·tanh(s/cap) on the scaled score."""
    alibi_slopes: tuple[float, ...] | None = None
    """[num_q_heads]; adds slope·(key position − query position) to the score."""
    sinks: tuple[float, ...] | None = None
    """[num_q_heads]; one more logit without a value, counted in the LSE."""
    k_scale: float = 1.0
    """What a stored key means: code × scale; a write stores value ÷ scale."""
    v_scale: float = 1.0
    kv_scales: str = "tensor"
    """What one scale serves: "tensor" (``k_scale`` and ``v_scale``), "head" or "token" (the scales of ``KVPools``)."""
    mla: bool = False
    """The values are the first ``value_dim`` dims of the keys, stored once (DeepSeek-V2, section 2.1.2)."""
    return_lse: bool = False

    def __post_init__(self) -> None:
        for name in ("num_q_heads", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"AttentionSpec.{name} must be at least 1, got {getattr(self, name)}")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"AttentionSpec.num_q_heads ({self.num_q_heads}) must be a multiple of "
                f"num_kv_heads ({self.num_kv_heads}): each key head serves a whole group of query heads"
            )
        if self.window is not None and (self.window < 1 or not self.causal):
            raise ValueError(f"AttentionSpec.window ({self.window}) must be at least 1 and needs causal=True")
        if self.kv_scales not in KV_SCALES:
            raise ValueError(f"AttentionSpec.kv_scales {self.kv_scales!r}: one of {', '.join(KV_SCALES)}")
        if self.kv_scales != "tensor" and (self.k_scale, self.v_scale) != (1.0, 1.0):
            raise ValueError(f"AttentionSpec.k_scale and v_scale must be 1 with kv_scales={self.kv_scales!r}")
        if self.mla and self.k_scale != self.v_scale:
            raise ValueError(f"AttentionSpec.k_scale ({self.k_scale}) and v_scale ({self.v_scale}) must agree with mla")
        if self.mla and self.value_dim_value > self.head_dim:
            raise ValueError(f"AttentionSpec.value_dim ({self.value_dim}) exceeds head_dim ({self.head_dim}) with mla")

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def scale_value(self) -> float:
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def value_dim_value(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True)
class PagedBatch:
    """The step tensors: what changes with every launch. Rows are sequences, in the order of the query rows."""

    block_tables: Tensor
    """[num_seqs, max_blocks] int32; entries past a sequence's last block may hold anything."""
    context_lens: Tensor
    """[num_seqs] int32, valid tokens after this step's write."""
    query_start: Tensor
    """[num_seqs + 1] int32; sequence i's query rows are the last positions of its context."""
    slot_mapping: Tensor
    """[num_tokens] int64, where this step's K and V go; -1 = nowhere."""
    context_lens_host: Sequence[int]
    """``context_lens``, known to the host without a copy from a device."""
    query_lens_host: tuple[int, ...]
    common_prefix_blocks: int = 0
    """Leading blocks that all sequences of the batch share."""
    copies: Copies = ()
    """Blocks to copy before this step's write; ``append_step`` fills it."""

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens_host)

    @property
    def num_tokens(self) -> int:
        """Query rows in all."""
        return sum(self.query_lens_host)

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens_host, default=0)

    @property
    def max_context_len(self) -> int:
        return max(self.context_lens_host, default=0)


@dataclass(frozen=True)
class KVPools:
    """Views of the kernel's own storage; the suite allocates, poisons, guards and reads through them."""

    key: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim]"""
    value: Tensor
    """[num_blocks, block_size, num_kv_heads, value_dim]; with ``spec.mla`` the view ``key[..., :value_dim]``."""
    key_scale: Tensor | None = None
    """float32, what a code of the key pool is multiplied by: [num_kv_heads] with ``spec.kv_scales`` "head",
    [num_blocks, block_size, num_kv_heads] with "token"; None with "tensor"."""
    value_scale: Tensor | None = None


class Launch(Protocol):
    """A planned batch; can be run again on new contents of the same tensors."""

    def __call__(self, query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
        """``query`` [num_tokens, num_q_heads, head_dim] to ``out`` [num_tokens, num_q_heads, value_dim], or to
        (out, lse) with lse [num_tokens, num_q_heads] float32, natural logarithm, when ``spec.return_lse``."""
        ...


@runtime_checkable
class PagedKernel(Protocol):
    """Attention over a paged KV cache.

    Optional attributes: ``pool_order`` (how a block is stored: "NHD", the default, or any other order of block slot,
    head and dim; a pair of orders where keys and values differ), ``max_context_len`` (longest context that is
    practical, None: any), ``arithmetic(spec)`` (see ``DEFAULT_ARITHMETIC``), ``write(spec, key, value, pools,
    slot_mapping)`` (scales a head are given, scales a token are made: max |row| ÷ 127, and stored; with ``spec.mla``
    ``key`` alone is written), ``copy_blocks(pools, copies)`` (scales a token go along). For benchmarks:
    ``dense(spec, query, key, value)``, the same
    arithmetic without paging (query [num_seqs, num_q_heads, head_dim], K and V [num_seqs, context, num_kv_heads, dim]);
    ``interpreted``, true where a timing would mean nothing; ``resources(spec, targets)``, what the compiler used;
    ``validate``, whether tables are read back to the host and checked, which is off while the kernel is timed.
    """

    features: Set[str]
    """Beyond plain causal attention; an option that is not named is never asked for. See ``FEATURES``."""

    def unsupported(self, spec: AttentionSpec) -> str | None:
        """Why this spec can't be run, or None."""
        ...

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """The host work of one batch. ``reuse``: an earlier launch whose buffers and addresses are kept."""
        ...


FEATURES: Mapping[str, str] = {
    "fp8": "K and V stored in 8-bit floating point",
    "int8": "K and V stored in 8-bit integers",
    "head_scales": "a scale for each key head",
    "token_scales": "a scale for each token and key head",
    "window": "sliding window",
    "softcap": "cap·tanh(s/cap) on the scores",
    "alibi": "linear position bias",
    "sinks": "one more logit a head, without a value",
    "lse": "returns the log-sum-exp",
    "mla": "value is a slice of key",
    "empty_rows": "a row without visible keys gives 0 and -inf",
    "out": "writes into a given output",
    "graph": "a launch can be captured and replayed",
    "fused_write": "writes this step's K and V itself",
    "cascade": "reads a common prefix once",
    "dirty_tail": "NaN in the slots past the context, inside the last block, is harmless",
    "relabel_bitwise": "renaming physical blocks changes no output bit",
    "capacity_bitwise": "table width and pool size change no output bit",
    "batch_bitwise": "the neighbours in a batch change no output bit",
    "run_bitwise": "two runs give the same bits",
}

DEFAULT_ARITHMETIC: Mapping[str, Any] = {
    "p": None,  # softmax weights before P·V are rounded to this type; None: the type of the query
    "accumulator": "float32",
    "partials": "float32",  # type in which split-KV partial results are stored
    "output": None,  # None: the type of the query
    "output_rounding": "nearest",  # or "toward_zero", which doubles the unit roundoff
    "tf32": False,
    "rounded_sum": False,  # the softmax denominator sums the weights after their rounding to "p"
    "prescaled_q": False,  # scale multiplied into q and rounded to its type
    "weights_take_scale": False,  # a token's v_scale is multiplied into its weight before that is rounded to "p"
    "tile": 16,  # tokens accumulated at a time
}
"""What is assumed of a kernel without ``arithmetic(spec)``, and the keys that such a method may return."""
