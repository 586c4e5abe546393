"""From an output back to the token that it came from: which digits it shows, and whose they are."""

from __future__ import annotations

import math

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.clusters import clusters
from kvproof_suites.kernel.needle import Needle
from kvproof_suites.kernel.pages import locate
from kvproof_suites.outcome import LawBroken
from kvproof_suites.repro.evidence import worst


def judge(needle: Needle, spec: AttentionSpec, out: torch.Tensor) -> None:
    """Raise LawBroken unless every judged output decodes to its target's digits."""
    out = out.double().cpu()
    of_key_head = torch.arange(spec.num_q_heads) // spec.group_size
    expected = needle.digits[needle.targets.clamp(min=0), of_key_head].double()
    wrong = ~((out - expected).abs() < 0.25)  # NaN is wrong
    wrong &= (needle.targets >= 0).unsqueeze(2)
    if not wrong.any():
        return
    token, head = wrong.any(2).nonzero()[0].tolist()
    told = explain(needle, spec, out, expected, token, head, int(wrong.any(2).sum()))
    where = clusters(needle.pages, wrong.any(2), needle.targets)
    judged = torch.where((needle.targets >= 0).unsqueeze(2), expected, out)
    elements = worst("out", out, judged, torch.tensor(0.25))
    raise LawBroken(f"{told}\n{where}", elements)


def explain(
    needle: Needle, spec: AttentionSpec, out: torch.Tensor, expected: torch.Tensor, token: int, head: int, count: int
) -> str:
    row, index = locate(needle.pages, token)
    position = needle.pages.query_positions(row)[index]
    key_head = head // spec.group_size
    read = what_was_read(out[token, head], expected[token, head], needle.digits[:, key_head].double())
    story = f"it {read[0]} {needle.pages.describe(read[1])}" if read else "the output is no token's value"
    worst = int((out[token, head] - expected[token, head]).abs().nan_to_num(math.inf).argmax())
    return (
        f"{count} of {int((needle.targets >= 0).sum())} queries decode to the wrong token.\n"
        f"  sequence {needle.pages.sequence(row)}, query position {position}, head {head} (key head {key_head}) "
        f"looks for {needle.pages.describe(int(needle.targets[token, head]))};\n"
        f"  {story}.\n"
        f"  channel {worst}: got {out[token, head, worst]:.4f}, want {expected[token, head, worst]:.0f}"
    )


def what_was_read(got: torch.Tensor, want: torch.Tensor, digits: torch.Tensor) -> tuple[str, int] | None:
    """The slot whose digits explain ``got``: read instead of the target, or as well as it."""
    for how, candidate in (("read, in its place,", got), ("also read", 2 * got - want)):
        distance = (digits - candidate).abs().amax(1)
        slot = int(distance.nan_to_num(math.inf).argmin())
        if distance[slot] < 0.25:
            return how, slot
    return None
