"""Needle: one key outweighs all others, so that the output is the value of exactly one token.

Keys are random ±1 codes of length L, the largest power of two that fits the head, one code a position and key head;
values are digits 1 to 8, one pattern a slot. Pools of 8 bits store them divided by their scales, powers of two. Under
latent attention a key is digits, on which the query is 0, and a code at its end, which reaches into the values.

A query is c times the code of its target, with c the smallest power of
two for which every other score is at least 20.8 + ln n below the target's on the data drawn. Then every other weight
together is below 2^-30, the target's weight is exactly 1 in every format, and the output rounds to the target's digits
(SPEC.md has the proof). Judged by decoding: the nearest integer, at a distance below 1/4.

The code depends on the position and not on the sequence: position p of any other sequence, and every slot that nobody
owns, is a *decoy*, a twin of some needle's key with digits of its own. Reading one gives the mean of two patterns,
which tells which slot was read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.codes import draw_codes, loudness
from kvproof_suites.kernel.pages import Pages, repeat_rows
from kvproof_suites.kernel.scales import Scales, powers_of_two


@dataclass(frozen=True)
class Needle:
    pages: Pages
    query: torch.Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    digits: torch.Tensor
    """[num_slots, num_kv_heads, value_dim], 1 to 8: what the values mean"""
    keys: torch.Tensor
    """[num_slots, num_kv_heads, head_dim], as stored"""
    values: torch.Tensor
    """[num_slots, num_kv_heads, value_dim], as stored"""
    scales: Scales
    targets: torch.Tensor
    """[num_tokens, num_q_heads], the slot whose value is the answer; -1: not judged"""


def bury(pages: Pages, spec: AttentionSpec, generator: torch.Generator, twins: int = 0) -> Needle:
    """A query for every position of every sequence of ``pages``.

    With ``twins`` = d, positions d apart have one code between them, and only what has its twin out of sight is looked
    for: at d = 1 the twin stands one past the causal limit, at d = the window it stands one before the window.
    """
    if twins != 1:
        pages = repeat_rows(pages, [-(-n // q) for n, q in zip(pages.context_lens, pages.query_lens, strict=True)])
    codes = draw_codes(max(pages.context_lens), spec, generator, twins)
    length, shape = codes.shape[2], (pages.num_slots, spec.num_kv_heads)
    dims = slice(spec.head_dim - length, None) if spec.mla else slice(0, length)
    digits = torch.randint(1, 9, (*shape, spec.value_dim_value), generator=generator).float()
    keys = torch.zeros(*shape, spec.head_dim)
    keys[..., : spec.value_dim_value] = digits if spec.mla else 0
    keys[..., dims] = codes[:, position_of_slot(pages)].transpose(0, 1)
    digits = keys[..., : spec.value_dim_value].clone() if spec.mla else digits
    aimed = torch.cat([aim(pages, row, spec, twins) for row in range(len(pages.tables))])
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    query = torch.zeros(pages.num_query_tokens, spec.num_q_heads, spec.head_dim)
    meant = replace(spec, k_scale=1.0, v_scale=1.0)
    query[..., dims] = codes[of_key_head, aimed.clamp(min=0)] * loudness(codes, pages, aimed, meant)
    scales = powers_of_two(pages, spec, generator)
    stored = (keys / scales.key[..., None], digits / scales.value[..., None])
    return Needle(pages, query, digits, *stored, scales, slots_at(pages, aimed))


def position_of_slot(pages: Pages) -> torch.Tensor:
    """[num_slots]: the position whose code a slot carries. Unowned slots are decoys of a position asked for."""
    positions = torch.zeros(pages.num_slots, dtype=torch.long)
    lengths = [length for length in pages.context_lens if length]
    for slot in pages.unowned_slots():
        positions[slot] = slot % lengths[slot % len(lengths)] if lengths else 0
    for row, table in enumerate(pages.tables):
        # A tail slot is the decoy of the sequence whose block it ends.
        for position in range(pages.context_lens[row], len(table) * pages.block_size):
            positions[pages.slot(row, position)] = position % max(pages.context_lens[row], 1)
    for slot, (_, position) in pages.owners().items():
        positions[slot] = position
    return positions


def aim(pages: Pages, row: int, spec: AttentionSpec, twins: int) -> torch.Tensor:
    """The position that each query token and head of ``row`` looks for, [query_len, num_q_heads]; -1: none.

    The copies of one sequence share its positions among them, and the heads start at different ones.
    """
    copy = sum(pages.tables[earlier] == pages.tables[row] for earlier in range(row))
    context_len, query_len = pages.context_lens[row], pages.query_lens[row]
    first = min(copy * query_len, context_len - query_len)
    positions = torch.full((query_len, spec.num_q_heads), -1)
    for i, own in enumerate(pages.query_positions(row)):
        visible = range(0 if spec.window is None else max(0, own - spec.window + 1), own + 1)
        alone = [t for t in visible if not twins or twin_of(t, twins) not in visible]
        for head in range(spec.num_q_heads if alone else 0):
            positions[i, head] = alone[(first + i + head) % len(alone)]
    return positions


def twin_of(position: int, distance: int) -> int:
    return position - distance if position // distance % 2 else position + distance


def slots_at(pages: Pages, positions: torch.Tensor) -> torch.Tensor:
    """The slot of each of ``positions`` [num_tokens, num_q_heads]; -1 stays -1."""
    slots, start = torch.full_like(positions, -1), 0
    for row, query_len in enumerate(pages.query_lens):
        own, part = pages.slots(row), positions[start : start + query_len]
        slots[start : start + query_len] = torch.where(part >= 0, torch.tensor([*own, 0])[part.clamp(min=0)], -1)
        start += query_len
    return slots
