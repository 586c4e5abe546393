"""Whether what is wrong lies together, in one sequence, block or head: that tells a wrong address from rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from kvproof_suites.kernel.pages import Pages

NUM_SHOWN = 4


def clusters(pages: Pages, wrong: torch.Tensor, slots: torch.Tensor | None = None) -> str:
    """Lines ``by sequence``, ``by block`` and ``by head``: wrong of all, where most are wrong first.

    Args:
        wrong: [num_tokens, num_q_heads] bool.
        slots: [num_tokens, num_q_heads], the slot that each looks for, -1: none, not counted; None: the slot of the
            query's own token.
    """
    sequences = torch.tensor([pages.sequence(row) for row in range(len(pages.tables))])
    rows = sequences.repeat_interleave(torch.tensor(pages.query_lens))
    slots = own_slots(pages)[:, None].expand(wrong.shape) if slots is None else slots
    counted = slots >= 0
    groups = {
        "sequence": rows[:, None].expand(wrong.shape),
        "block": slots // pages.block_size,
        "head": torch.arange(wrong.shape[1]).expand(wrong.shape),
    }
    return "\n".join(
        f"  by {what}: {shares(group[counted & wrong].tolist(), group[counted].tolist())}"
        for what, group in groups.items()
    )


def own_slots(pages: Pages) -> torch.Tensor:
    """[num_tokens]: where each query token's own K and V lie; -1 for a query before position 0."""
    return torch.tensor(
        [
            pages.slot(row, position) if position >= 0 else -1
            for row in range(len(pages.tables))
            for position in pages.query_positions(row)
        ],
        dtype=torch.long,
    )


def shares(wrong: Iterable[int], every: Iterable[int]) -> str:
    """``3 (16 of 16), 5 (1 of 16)``"""
    bad, total = Counter(wrong), Counter(every)
    ranked = sorted(bad, key=lambda group: (-bad[group] / total[group], group))
    if len(ranked) == len(total) > 1 and bad == total:
        return f"all of {len(total)}"
    more = f", and {len(ranked) - NUM_SHOWN} more of {len(total)}" if len(ranked) > NUM_SHOWN else ""
    return ", ".join(f"{group} ({bad[group]} of {total[group]})" for group in ranked[:NUM_SHOWN]) + more
