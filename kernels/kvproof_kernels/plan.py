"""The host work of one batch: choose what runs, cut the work, keep the buffers that a captured graph reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvproof_kernels.attention import NO_WINDOW, Terms, paged_attention
from kvproof_kernels.buffers import Buffers
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.launch import backend_of
from kvproof_kernels.tiles import Configuration, rows_kind, tile_for
from kvproof_kernels.tuned import Place, arch_of
from kvproof_kernels.validation import check_ids, check_launch, check_scales, check_tables
from kvproof_kernels.work import TARGET_ITEMS, plan_work

MAX_DRAFT = 8
"""Query rows a sequence up to which a plan's buffers leave room for other lengths, since its launch may be captured."""


class PagedAttention:
    """A planned batch, to be launched on new contents of the same tensors any number of times.

    A later plan that is given this one as ``reuse`` takes over its buffers and their addresses, so that a CUDA graph
    captured from this one's launch does the later one's work when it is replayed.

    Args:
        geometry: what the model fixes.
        block_tables: [num_seqs, max_blocks] int32, read at every launch. A graph reads the tensor that it was captured
            with: a later plan's table has to be copied into it.
        context_lens: tokens of each sequence, this step's own included; known to the host.
        query_lens: query rows of each sequence, its last positions; likewise.
        common_prefix_blocks: leading blocks that are the same in all tables; their tokens are read once for all rows.
        reuse: an earlier plan whose buffers are taken over.
        validate: check at the first launch that every id that will be read lies in the pool; waits for the device.
        configuration: what is compiled; None: ``configuration_for`` chooses.

    Raises:
        ValueError: the geometry is not supported, a table is too narrow for its context, or ``reuse`` has other rows.
        TypeError: a dtype does not fit.
    """

    def __init__(
        self,
        geometry: Geometry,
        block_tables: Tensor,
        context_lens: Sequence[int],
        query_lens: Sequence[int],
        *,
        common_prefix_blocks: int = 0,
        reuse: PagedAttention | None = None,
        validate: bool = False,
        configuration: Configuration | None = None,
    ) -> None:
        device = block_tables.device
        if (reason := geometry.unsupported(device)) is not None:
            raise ValueError(f"the triton kernels do not support {reason}")
        check_tables(block_tables, context_lens, query_lens, geometry.block_size, common_prefix_blocks)
        self.geometry, self.block_tables, self.validate = geometry, block_tables, validate
        self.context_lens, self.common_prefix_blocks = list(context_lens), common_prefix_blocks
        if reuse is not None and reuse.geometry != geometry:
            raise ValueError(f"reuse: the earlier launch was planned for {reuse.geometry}, this one for {geometry}")
        pairs = max(query_lens, default=0) * geometry.group_size
        chosen = configuration or configuration_for(geometry, pairs, device)
        self.configuration: Configuration = chosen if reuse is None else reuse.configuration
        rows_per_tile = max(1, self.configuration.block_m // geometry.group_size)
        buffers: Buffers | None = None if reuse is None else reuse.buffers
        work = plan_work(
            context_lens,
            query_lens,
            rows_per_tile=rows_per_tile,
            step=self.configuration.block_n,
            window=geometry.window,
            common_prefix_len=common_prefix_blocks * geometry.block_size,
            max_items=None if buffers is None else len(buffers.work.items),
            max_partials=None if buffers is None else len(buffers.partial_lse),
        )
        if buffers is None:
            room = TARGET_ITEMS if max(query_lens, default=0) <= MAX_DRAFT else 0
            buffers = Buffers.for_work(work, geometry, rows_per_tile, room, device)
        self.terms: Terms = terms_on(geometry, device) if reuse is None else reuse.terms
        self.buffers: Buffers = buffers
        self.work = buffers.load(work)
        self._checked: set[tuple[object, ...]] = set()

    def __call__(
        self,
        query: Tensor,
        key_pool: Tensor,
        value_pool: Tensor,
        out: Tensor | None = None,
        *,
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: [num_tokens, num_q_heads, head_dim]; any strides, unit last one.
            key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order, unit last stride.
            value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise; with MLA a view of ``key_pool``.
            out: [num_tokens, num_q_heads, value_dim] of query's dtype, written to; None: a new one.
            key_scale: [num_kv_heads] or [num_blocks, block_size, num_kv_heads] float32, where the geometry says so.
            value_scale: likewise.

        Returns:
            out and lse [num_tokens, num_q_heads] float32, natural logarithm.

        Raises:
            ValueError: a tensor's shape, device or strides do not fit; the message names the tensor and its shape. A
                later plan has taken over the buffers.
            TypeError: a dtype does not fit.
        """
        geometry, captured = self.geometry, is_captured(query)
        if self.buffers.loaded is not self.work and not captured:
            raise ValueError("a later plan has taken over the buffers of this one (reuse): launch that one")
        if out is None:
            out = query.new_empty((*query.shape[:2], geometry.value_dim))
        lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        self._check(query, key_pool, value_pool, out, key_scale, value_scale)
        terms = self.terms
        if key_scale is not None and value_scale is not None:
            terms = replace(terms, key_scales=key_scale, value_scales=value_scale)
        partials = self.buffers.partial_out, self.buffers.partial_lse
        work = self.buffers.work if captured else self.work
        tensors = (query, key_pool, value_pool, self.block_tables)
        paged_attention(*tensors, work, terms, self.configuration, out, lse, partials)
        return out, lse

    def _check(
        self,
        query: Tensor,
        key_pool: Tensor,
        value_pool: Tensor,
        out: Tensor,
        key_scale: Tensor | None,
        value_scale: Tensor | None,
    ) -> None:
        """Once for each kind of tensors: what fitted once fits again."""
        given = (query, key_pool, value_pool, out, key_scale, value_scale)
        kinds = (t if t is None else (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in given)
        kind = (key_pool.data_ptr() == value_pool.data_ptr(), *kinds)
        if kind in self._checked:
            return
        num_tokens = len(self.work.positions)
        check_launch(self.geometry, num_tokens, query, key_pool, value_pool, out, self.block_tables)
        check_scales(self.geometry, key_pool, key_scale, value_scale)
        if self.validate:
            check_ids(self.block_tables, self.context_lens, key_pool, self.common_prefix_blocks)
        self._checked.add(kind)


def configuration_for(geometry: Geometry, num_pairs: int, device: torch.device) -> Configuration:
    """What is compiled where no sequence has more than ``num_pairs`` (query row, head of the group) pairs."""
    backend = backend_of(device)
    place = None if backend == "interpreter" else Place(arch_of(device), geometry.group_size, geometry.block_size)
    return tile_for(rows_kind(num_pairs), geometry.form, backend, place)


def terms_on(geometry: Geometry, device: torch.device) -> Terms:
    """The numbers of ``geometry``, where the kernel reads them."""

    def filled(length: int, value: float) -> Tensor:
        return torch.full((length,), value, dtype=torch.float32, device=device)

    slopes, sinks = (
        filled(geometry.num_q_heads, absent)
        if given is None
        else torch.tensor(given, dtype=torch.float32, device=device)
        for given, absent in ((geometry.alibi_slopes, 0.0), (geometry.sinks, -math.inf))
    )
    scales = (filled(geometry.num_kv_heads, scale) for scale in (geometry.key_scale, geometry.value_scale))
    window = min(int(geometry.window or NO_WINDOW), NO_WINDOW)
    return Terms(float(geometry.scale), float(geometry.softcap or 0.0), window, slopes, sinks, *scales)


def is_captured(tensor: Tensor) -> bool:
    """Whether this launch goes into a CUDA graph, which has to do for whatever is planned into its buffers later."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
