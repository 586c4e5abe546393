"""Census: all weights are equal, so that the output counts tokens.

q = 0 gives every visible key the same weight. Half of the value channels are one-hot by *owner*: the row's own channel
must be 1 (with that of a prefix that several sequences share, 1 in all) and every other exactly 0, so that one token
taken from elsewhere shows with certainty. The other half is
one-hot by a hash of the *position*, fresh for each key head: times n, the output is a count for each class, so that a
token dropped, read twice or read in place of another changes a count. Classes are so many that a count stays small
enough to decode in the output's format (SPEC.md): the nearest integer must be right, at a distance below 1/4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.pages import Pages, locate
from kvproof_suites.kernel.scales import Scales, powers_of_two
from kvproof_suites.outcome import Element, LawBroken, refuse
from kvproof_suites.repro.evidence import worst

LARGEST_COUNT = {"float32": 1000, "float16": 100, "bfloat16": 50}
"""A count c comes back with an error below c·2u for the output's unit roundoff u (2u: rounding toward zero)."""


@dataclass(frozen=True)
class Census:
    pages: Pages
    keys: torch.Tensor
    """[num_slots, num_kv_heads, head_dim], as stored: anything; under latent attention they begin with the values"""
    values: torch.Tensor
    """[num_slots, num_kv_heads, value_dim], as stored: one-hot by owner, then one-hot by class of the position"""
    scales: Scales
    owners: torch.Tensor
    """[num_tokens, num_owners]: visible positions of each owner"""
    counts: torch.Tensor
    """[num_tokens, num_kv_heads, num_classes]: visible positions of each class"""
    visible: torch.Tensor
    """[num_tokens]: visible positions in all"""

    @property
    def num_owners(self) -> int:
        return self.owners.shape[1]


def take(pages: Pages, spec: AttentionSpec, generator: torch.Generator) -> Census:
    """One-hot values for every slot of ``pages``, and what each query token must count."""
    num_owners = spec.value_dim_value // 2
    num_classes = spec.value_dim_value - num_owners
    longest = max(pages.context_lens)
    classes = torch.stack([deal(longest, num_classes, generator) for _ in range(spec.num_kv_heads)])
    if -(-longest // num_classes) > LARGEST_COUNT[spec.dtype]:
        refuse(f"{longest} tokens in {num_classes} classes are too many to count in {spec.dtype}")
    values = torch.zeros(pages.num_slots, spec.num_kv_heads, spec.value_dim_value)
    heads, channels = torch.arange(spec.num_kv_heads), owner_channels(pages, num_owners)
    values[torch.arange(pages.num_slots), :, channels] = 1
    for slot, (_, position) in pages.owners().items():
        values[slot, heads, num_owners + classes[:, position]] = 1
    keys = torch.randn(pages.num_slots, spec.num_kv_heads, spec.head_dim, generator=generator)
    if spec.mla:
        keys[..., : spec.value_dim_value] = values
    scales = powers_of_two(pages, spec, generator)
    stored = (keys / scales.key[..., None], values / scales.value[..., None])
    by_class = torch.nn.functional.one_hot(classes.T, num_classes)
    return Census(pages, *stored, scales, *expected(pages, spec, channels, num_owners, by_class))


def owner_channels(pages: Pages, num_owners: int) -> torch.Tensor:
    """[num_slots]: the channel of the sequence that owns a slot, of all that share it, or, the last, of nobody."""
    channels = torch.full((pages.num_slots,), num_owners - 1)
    for slot, (row, _) in pages.owners().items():
        channels[slot] = row % (num_owners - 2)
    channels[list(pages.shared_slots())] = num_owners - 2
    return channels


def expected(
    pages: Pages, spec: AttentionSpec, channels: torch.Tensor, num_owners: int, by_class: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each query token counts by owner and by class, and in all; ``by_class`` [longest, num_kv_heads, num_classes]
    is one-hot."""
    owners, counts, visible = [], [], []
    for row in range(len(pages.tables)):
        by_owner = torch.nn.functional.one_hot(channels[pages.slots(row)], num_owners)
        last = torch.tensor(list(pages.query_positions(row)))
        first = torch.zeros_like(last) if spec.window is None else (last - spec.window + 1).clamp(min=0)
        owners.append(between(by_owner, first, last))
        counts.append(between(by_class, first, last))
        visible.append(last - first + 1)
    return torch.cat(owners), torch.cat(counts), torch.cat(visible)


def between(one_hot: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Sums of ``one_hot`` [num_positions, ...] over the positions from ``first`` to ``last`` [num_queries]."""
    sums = torch.cat([torch.zeros_like(one_hot[:1]), one_hot.cumsum(0)])
    return sums[last + 1] - sums[first]


def deal(num_positions: int, num_classes: int, generator: torch.Generator) -> torch.Tensor:
    """A class for every position: random, and as even as dealt cards, so that no count is larger than it must be."""
    return torch.cat(
        [torch.randperm(num_classes, generator=generator) for _ in range(-(-num_positions // num_classes))]
    )[:num_positions]


def judge(census: Census, spec: AttentionSpec, out: torch.Tensor) -> None:
    """Raise LawBroken unless every row counts its own visible tokens once and nothing else."""
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    owners, classes = out.double().cpu().tensor_split([census.num_owners], dim=2)
    for token in range(out.shape[0]):
        row, index = locate(census.pages, token)
        share = census.owners[token].double() / census.visible[token]
        foreign = owners[token].masked_fill(share > 0, 0)
        if not (foreign == 0).all():
            raise LawBroken(explain_foreign(census, row, index, foreign), elements_of(census, spec, out, token))
        wanted = census.counts[token, of_key_head].double()
        counted = classes[token] * census.visible[token]
        if not ((counted - wanted).abs() < 0.25).all() or not ((owners[token] - share).abs() < 0.25).all():
            told = explain_count(census, row, index, counted, wanted)
            raise LawBroken(told, elements_of(census, spec, out, token))


def elements_of(census: Census, spec: AttentionSpec, out: torch.Tensor, token: int) -> list[Element]:
    """The elements of query ``token`` that count wrongly."""
    got = out.double().cpu()
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    n = int(census.visible[token])
    want, bound = got.clone(), torch.zeros_like(got)
    want[token, :, : census.num_owners] = share = census.owners[token].double() / n
    bound[token, :, : census.num_owners] = 0.25 * (share > 0)
    want[token, :, census.num_owners :] = census.counts[token, of_key_head].double() / n
    bound[token, :, census.num_owners :] = 0.25 / n
    return worst("out", got, want, bound)


def explain_foreign(census: Census, row: int, index: int, foreign: torch.Tensor) -> str:
    position = census.pages.query_positions(row)[index]
    head, channel = divmod(int(foreign.abs().nan_to_num(torch.inf).argmax()), foreign.shape[1])
    names = {census.num_owners - 1: "nobody", census.num_owners - 2: "several sequences together"}
    whose = names.get(channel, f"sequence {channel}")
    share = foreign[head, channel].item() * census.visible.max().item()
    return (
        f"sequence {row}, query position {position}, head {head}: the output holds tokens of {whose}\n"
        f"  (about {share:.2f} of them; no weight at all may go there)"
    )


def explain_count(census: Census, row: int, index: int, counted: torch.Tensor, wanted: torch.Tensor) -> str:
    position = census.pages.query_positions(row)[index]
    missing, extra = ((wanted - counted).clamp(min=0).sum(1), (counted - wanted).clamp(min=0).sum(1))
    head = int((missing + extra).nan_to_num(torch.inf).argmax())
    return (
        f"sequence {row}, query position {position}, head {head}: of {int(wanted[head].sum())} visible tokens about "
        f"{missing[head]:.1f} are missing and {extra[head]:.1f} counted too often\n"
        f"  counts by class: got {[round(c, 2) for c in counted[head].tolist()[:8]]}, "
        f"want {wanted[head].int().tolist()[:8]} ..."
    )
