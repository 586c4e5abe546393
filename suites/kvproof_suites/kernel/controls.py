"""H2: the data and the bound of a case must reject what is wrong, or the case is a defect of the suite.

A budget that accepts zeros proves nothing. Before a kernel is judged, outputs that are wrong by construction go through
the same comparison: each has to leave its bound somewhere in the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvproof_suites.kernel.attend import arithmetic
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.drawn import Drawn, answers, draw, error_to_bound
from kvproof_suites.kernel.oracle import attend_dense, scaled
from kvproof_suites.outcome import SuiteDefect
from kvproof_suites.under_test import KernelUnderTest

NUM_TRIES = 8

Sequence = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""query [num_queries, num_q_heads, head_dim], keys and values [context, num_kv_heads, dim], what they mean"""


def shifted_by_one_slot(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Sequence:
    """The first token is lost and the slot past the end is read."""
    return query, torch.cat([keys[1:], foreign(keys, 1)]), torch.cat([values[1:], foreign(values, 1)])


def last_key_dropped(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Sequence:
    return query, torch.cat([keys[:1], keys[:-1]]), torch.cat([values[:1], values[:-1]])


def one_block_foreign(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Sequence:
    """The last block of up to 16 tokens holds somebody else's values."""
    start = (len(values) - 1) // 16 * 16
    return query, keys, torch.cat([values[:start], foreign(values, len(values) - start)])


def foreign(own: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` tokens of nobody's, like those of ``own``."""
    drawn = torch.randn(count, *own.shape[1:], generator=torch.Generator().manual_seed(7))
    return drawn.to(own.dtype)


def uniform_weights(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Sequence:
    return torch.zeros_like(query), keys, values


MISTAKES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence]] = {
    "the mean of V": uniform_weights,
    "a shift by one slot": shifted_by_one_slot,
    "one dropped key": last_key_dropped,
    "one foreign block": one_block_foreign,
}


def draw_discriminating(case: Case, generator: torch.Generator, kind: str, under_test: KernelUnderTest) -> Drawn:
    """Data on which every negative control fails; drawn again, a few times, where chance leaves one too close.

    Chosen by the declared arithmetic alone, before the kernel runs, so that the choice can't favour it.
    """
    for _ in range(NUM_TRIES):
        drawn = draw(case, generator, kind)
        accepted = accepted_controls(drawn, under_test)
        if not accepted:
            return drawn
    raise SuiteDefect(f"this case would accept {' and '.join(accepted)}, in {NUM_TRIES} draws of its data")


def accepted_controls(drawn: Drawn, under_test: KernelUnderTest) -> list[str]:
    """The negative controls that the bound would let pass on this data."""
    wanted = answers(drawn, under_test)
    generator = torch.Generator().manual_seed(11)
    outputs = {"zeros": [torch.zeros_like(want.out) for want in wanted]}
    outputs["random output"] = [torch.randn(want.out.shape, generator=generator).double() for want in wanted]
    outputs |= {name: mistaken(drawn, under_test, mistake) for name, mistake in MISTAKES.items()}
    return [
        name
        for name, wrong in outputs.items()
        if all(
            (error_to_bound(out, want.out, want.out_bound) <= 1).all() for out, want in zip(wrong, wanted, strict=True)
        )
    ]


def mistaken(
    drawn: Drawn, under_test: KernelUnderTest, mistake: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence]
) -> list[torch.Tensor]:
    """What each row would give with ``mistake``."""
    found, start, rounding = [], 0, arithmetic(under_test, drawn.spec)
    for row, query_len in enumerate(drawn.pages.query_lens):
        query = drawn.query[start : start + query_len]
        keys, values, *scales = drawn.history(row)
        if scales:
            keys, values = (scaled(*pair) for pair in zip((keys, values), scales, strict=True))
        found.append(attend_dense(*mistake(query, keys, values), drawn.spec, rounding).out)
        start += query_len
    return found
