"""Census: all weights are equal, so that the output counts tokens.

q = 0 gives every visible key the same weight. Half of the value channels are one-hot by *owner*: the row's own channel
must be 1 and every other exactly 0, so that one token taken from elsewhere shows with certainty. The other half is
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
    num_owners: int
    """Owner channels; the last is for whoever owns nothing."""
    counts: torch.Tensor
    """[num_tokens, num_kv_heads, num_classes]: visible positions of each class"""
    visible: torch.Tensor
    """[num_tokens]: visible positions in all"""


def take(pages: Pages, spec: AttentionSpec, generator: torch.Generator) -> Census:
    """One-hot values for every slot of ``pages``, and what each query token must count."""
    num_owners = spec.value_dim_value // 2
    num_classes = spec.value_dim_value - num_owners
    longest = max(pages.context_lens)
    classes = torch.stack([deal(longest, num_classes, generator) for _ in range(spec.num_kv_heads)])
    if -(-longest // num_classes) > LARGEST_COUNT[spec.dtype]:
        refuse(f"{longest} tokens in {num_classes} classes are too many to count in {spec.dtype}")
    values = torch.zeros(pages.num_slots, spec.num_kv_heads, spec.value_dim_value)
    values[:, :, num_owners - 1] = 1
    heads = torch.arange(spec.num_kv_heads)
    for slot, (row, position) in pages.owners().items():
        values[slot] = 0
        values[slot, :, row % (num_owners - 1)] = 1
        values[slot, heads, num_owners + classes[:, position]] = 1
    cumulative = torch.nn.functional.one_hot(classes, num_classes).cumsum(1)
    last = torch.tensor([p for row in range(len(pages.tables)) for p in pages.query_positions(row)])
    counts, visible = cumulative[:, last], last + 1
    if spec.window is not None:
        hidden = (last - spec.window).clamp(min=-1)
        counts = counts - torch.where((hidden < 0)[:, None], 0, cumulative[:, hidden])
        visible = last - hidden
    keys = torch.randn(pages.num_slots, spec.num_kv_heads, spec.head_dim, generator=generator)
    if spec.mla:
        keys[..., : spec.value_dim_value] = values
    scales = powers_of_two(pages, spec, generator)
    stored = (keys / scales.key[..., None], values / scales.value[..., None])
    return Census(pages, *stored, scales, num_owners, counts.transpose(0, 1), visible)


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
        own = row % (census.num_owners - 1)
        foreign = owners[token].clone()
        foreign[:, own] = 0
        if not (foreign == 0).all() or not ((owners[token, :, own] - 1).abs() < 0.25).all():
            raise LawBroken(explain_foreign(census, row, index, foreign), elements_of(census, spec, out, token))
        wanted = census.counts[token, of_key_head].double()
        counted = classes[token] * census.visible[token]
        if not ((counted - wanted).abs() < 0.25).all():
            told = explain_count(census, row, index, counted, wanted)
            raise LawBroken(told, elements_of(census, spec, out, token))


def elements_of(census: Census, spec: AttentionSpec, out: torch.Tensor, token: int) -> list[Element]:
    """The elements of query ``token`` that count wrongly."""
    got = out.double().cpu()
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    own, n = locate(census.pages, token)[0] % (census.num_owners - 1), int(census.visible[token])
    want, bound = got.clone(), torch.zeros_like(got)
    want[token, :, : census.num_owners] = 0
    want[token, :, own], bound[token, :, own] = 1, 0.25
    want[token, :, census.num_owners :] = census.counts[token, of_key_head].double() / n
    bound[token, :, census.num_owners :] = 0.25 / n
    return worst("out", got, want, bound)


def explain_foreign(census: Census, row: int, index: int, foreign: torch.Tensor) -> str:
    position = census.pages.query_positions(row)[index]
    head, channel = divmod(int(foreign.abs().nan_to_num(torch.inf).argmax()), foreign.shape[1])
    whose = "nobody" if channel == census.num_owners - 1 else f"sequence {channel}"
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
