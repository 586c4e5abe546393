"""Needle: one key outweighs all others, so that the output is the value of exactly one token.

Keys are random ±1 codes of length L, the largest power of two that fits the head, one code a position and key head;
values are digits 1 to 8, one pattern a slot. A query is c times the code of its target, with c the smallest power of
two for which every other score is at least 20.8 + ln n below the target's on the data drawn. Then every other weight
together is below 2^-30, the target's weight is exactly 1 in every format, and the output rounds to the target's digits
(SPEC.md has the proof). Judged by decoding: the nearest integer, at a distance below 1/4.

The code depends on the position and not on the sequence: position p of any other sequence, and every slot that nobody
owns, is a *decoy*, a twin of some needle's key with digits of its own. Reading one gives the mean of two patterns,
which tells which slot was read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.pages import Pages, repeat_rows
from kvproof_suites.outcome import LawBroken, refuse

GAP = 30 * math.log(2)


@dataclass(frozen=True)
class Needle:
    pages: Pages
    query: torch.Tensor
    """[num_tokens, num_q_heads, head_dim]"""
    keys: torch.Tensor
    """[num_slots, num_kv_heads, head_dim]"""
    values: torch.Tensor
    """[num_slots, num_kv_heads, value_dim], digits 1 to 8"""
    targets: torch.Tensor
    """[num_tokens, num_q_heads], the slot whose value is the answer; -1: not judged"""


def bury(pages: Pages, spec: AttentionSpec, generator: torch.Generator, twins_ahead: bool = False) -> Needle:
    """A query for every position of every sequence of ``pages``.

    With ``twins_ahead`` the codes come in pairs and a query at an even position targets itself: its twin stands one
    position ahead, past the causal limit.
    """
    if not twins_ahead:
        pages = repeat_rows(pages, [-(-n // q) for n, q in zip(pages.context_lens, pages.query_lens, strict=True)])
    codes = draw_codes(max(pages.context_lens), spec, generator, paired=twins_ahead)
    positions = position_of_slot(pages)
    keys = torch.zeros(pages.num_slots, spec.num_kv_heads, spec.head_dim)
    keys[..., : codes.shape[2]] = codes[:, positions].transpose(0, 1)
    values = torch.randint(
        1, 9, (pages.num_slots, spec.num_kv_heads, spec.value_dim_value), generator=generator
    ).float()
    aims = [aim(pages, row, spec.num_q_heads, twins_ahead) for row in range(len(pages.tables))]
    positions_aimed, targets = (torch.cat(parts) for parts in zip(*aims, strict=True))
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    query = torch.zeros(pages.num_query_tokens, spec.num_q_heads, spec.head_dim)
    query[..., : codes.shape[2]] = codes[of_key_head, positions_aimed] * loudness(codes, spec, max(pages.context_lens))
    return Needle(pages, query, keys, values, targets)


def draw_codes(num_positions: int, spec: AttentionSpec, generator: torch.Generator, paired: bool) -> torch.Tensor:
    """[num_kv_heads, num_positions, L] of ±1; ``paired``: positions 2m and 2m + 1 have the same code."""
    length = 1 << (spec.head_dim.bit_length() - 1)
    drawn = torch.randint(0, 2, (spec.num_kv_heads, num_positions, length), generator=generator).float() * 2 - 1
    return drawn[:, torch.arange(num_positions) // 2 * 2] if paired else drawn


def loudness(codes: torch.Tensor, spec: AttentionSpec, num_visible: int) -> float:
    """The smallest power of two c that silences every other key, on the codes drawn."""
    length = codes.shape[2]
    dots = codes @ codes.transpose(1, 2)
    loudest_other = dots[dots < length].max().item() if (dots < length).any() else -length
    needed = (GAP + math.log(max(num_visible, 1))) / (spec.scale_value * (length - loudest_other))
    c = 2.0 ** max(0, math.ceil(math.log2(needed)))
    if c * length >= 2**15:
        refuse(f"no needle is loud enough for {num_visible} tokens at head dim {spec.head_dim} and this scale")
    return c


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


def aim(pages: Pages, row: int, num_q_heads: int, at_itself: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What each query token and head of ``row`` looks for: (positions, slots), both [query_len, num_q_heads].

    The copies of one sequence share its positions among them, the heads start at different ones, and nothing past the
    causal limit is aimed at.
    """
    copy = sum(pages.tables[earlier] == pages.tables[row] for earlier in range(row))
    context_len, query_len = pages.context_lens[row], pages.query_lens[row]
    first = min(copy * query_len, context_len - query_len)
    positions = torch.zeros(query_len, num_q_heads, dtype=torch.long)
    slots = torch.full((query_len, num_q_heads), -1)
    for i, own in enumerate(pages.query_positions(row)):
        if at_itself and own % 2:
            continue  # its twin is behind it, in plain sight
        for head in range(num_q_heads):
            position = own if at_itself else (first + i + head) % (own + 1)
            positions[i, head], slots[i, head] = position, pages.slot(row, position)
    return positions, slots


def judge(needle: Needle, spec: AttentionSpec, out: torch.Tensor) -> None:
    """Raise LawBroken unless every judged output decodes to its target's digits."""
    out = out.double().cpu()
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    expected = needle.values[needle.targets.clamp(min=0), of_key_head].double()
    wrong = ~((out - expected).abs() < 0.25)  # NaN is wrong
    wrong &= (needle.targets >= 0).unsqueeze(2)
    if not wrong.any():
        return
    token, head = wrong.any(2).nonzero()[0].tolist()
    raise LawBroken(explain(needle, spec, out, expected, token, head, int(wrong.any(2).sum())))


def explain(
    needle: Needle, spec: AttentionSpec, out: torch.Tensor, expected: torch.Tensor, token: int, head: int, count: int
) -> str:
    row, index = locate(needle.pages, token)
    position = needle.pages.query_positions(row)[index]
    key_head = head // spec.group_size
    read = what_was_read(out[token, head], expected[token, head], needle.values[:, key_head].double())
    story = f"it {read[0]} {needle.pages.describe(read[1])}" if read else "the output is no token's value"
    worst = int((out[token, head] - expected[token, head]).abs().nan_to_num(math.inf).argmax())
    return (
        f"{count} of {int((needle.targets >= 0).sum())} queries decode to the wrong token.\n"
        f"  sequence {row}, query position {position}, head {head} (key head {key_head}) looks for "
        f"{needle.pages.describe(int(needle.targets[token, head]))};\n"
        f"  {story}.\n"
        f"  channel {worst}: got {out[token, head, worst]:.4f}, want {expected[token, head, worst]:.0f}"
    )


def what_was_read(got: torch.Tensor, want: torch.Tensor, values: torch.Tensor) -> tuple[str, int] | None:
    """The slot whose digits explain ``got``: read instead of the target, or as well as it."""
    for how, candidate in (("read, in its place,", got), ("also read", 2 * got - want)):
        distance = (values - candidate).abs().amax(1)
        slot = int(distance.nan_to_num(math.inf).argmin())
        if distance[slot] < 0.25:
            return how, slot
    return None


def locate(pages: Pages, token: int) -> tuple[int, int]:
    """(row, index within the row's queries) of query token ``token``."""
    for row, query_len in enumerate(pages.query_lens):
        if token < query_len:
            return row, token
        token -= query_len
    raise IndexError(f"no query token {token}")
