"""The codes of needles: keys that a query tells apart with certainty, whatever the options of the spec."""

from __future__ import annotations

import math

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.oracle import head_of
from kvproof_suites.kernel.pages import Pages
from kvproof_suites.outcome import refuse

GAP = 30 * math.log(2)
"""With ln n more, every other weight together is below 2^-30."""

LOUDEST = 2**15
"""c·L stays below float16's range, with room for the scale."""


def draw_codes(num_positions: int, spec: AttentionSpec, generator: torch.Generator, twins: int) -> torch.Tensor:
    """[num_kv_heads, num_positions, L] of ±1, L the largest power of two that fits the head; under latent attention
    twice the dims that are no value, so that one half of a code is one.

    ``twins`` = d > 0: positions p and p + d have the same code for p // d even. A soft cap squeezes the loudest scores
    together, so that there the crowd has to be silent: rows of a Hadamard matrix, whose dot products are exactly 0.
    """
    room = 2 * (spec.head_dim - spec.value_dim_value) if spec.mla else spec.head_dim
    length = 1 << (room.bit_length() - 1)
    if spec.softcap is None:
        drawn = torch.randint(0, 2, (spec.num_kv_heads, num_positions, length), generator=generator).float() * 2 - 1
    elif num_positions > length:
        refuse(f"under a soft cap {num_positions} tokens can't all have orthogonal codes of length {length}")
    else:
        signs = torch.randint(0, 2, (spec.num_kv_heads, 1, length), generator=generator).float() * 2 - 1
        order = torch.randperm(length, generator=generator)[:num_positions]
        drawn = hadamard(length)[order][None] * signs
    if not twins:
        return drawn
    positions = torch.arange(num_positions)
    return drawn[:, torch.where(positions // twins % 2 == 1, positions - twins, positions)]


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix of ±1 with orthogonal rows, [size, size]; ``size`` a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def loudness(codes: torch.Tensor, pages: Pages, aimed: torch.Tensor, spec: AttentionSpec) -> float:
    """The smallest power of two c that silences every other key, on the codes drawn; the case is refused if none does.

    Args:
        codes: [num_kv_heads, num_positions, L]
        aimed: [num_tokens, num_q_heads], positions; -1: not judged
    """
    length = codes.shape[2]
    dots = codes @ codes.transpose(1, 2)
    loudest_other = dots[dots < length].max().item() if (dots < length).any() else -length
    per_unit = spec.scale_value * spec.k_scale * (length - loudest_other)
    c = 2.0 ** max(0, math.ceil(math.log2(needed_gap(pages) / per_unit)))
    shaped = spec.softcap is not None or spec.alibi_slopes is not None or spec.sinks is not None
    while shaped and c * length < LOUDEST and smallest_gap(c * codes, codes, pages, aimed, spec) < needed_gap(pages):
        c *= 2
    if c * length >= LOUDEST:
        refuse(f"no needle is loud enough for {max(pages.context_lens)} tokens under this scale, cap, bias or sink")
    return c


def needed_gap(pages: Pages) -> float:
    return GAP + math.log(max(*pages.context_lens, 1) + 1)


def smallest_gap(
    queries: torch.Tensor, codes: torch.Tensor, pages: Pages, aimed: torch.Tensor, spec: AttentionSpec
) -> float:
    """How far the loudest other logit stays below the target's, at least, over all queries that are judged."""
    smallest, start = math.inf, 0
    for context_len, query_len in zip(pages.context_lens, pages.query_lens, strict=True):
        positions = aimed[start : start + query_len]
        for head in range(spec.num_q_heads):
            judged = positions[:, head] >= 0
            target = positions[:, head].clamp(min=0)
            keys = codes[head // spec.group_size, :context_len]
            found = head_of(queries[head // spec.group_size, target], keys, keys, spec, head)
            others = found.scores.masked_fill(~found.visible, -math.inf).scatter(1, target[:, None], -math.inf)
            floor = -math.inf if spec.sinks is None else spec.sinks[head]
            gap = found.scores.gather(1, target[:, None]).squeeze(1) - others.amax(1).clamp(min=floor)
            smallest = min(smallest, gap[judged].min().item() if judged.any() else math.inf)
        start += query_len
    return smallest
