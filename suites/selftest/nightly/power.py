"""``python -m selftest.nightly.power``: what the budget catches and misses, by length and type, as a Markdown table.

Each cell counts the draws in which the budget rejects a simulated kernel that makes one mistake at a random place of
the context: a token dropped, one slot that holds a stranger's key and value, a block of 16 of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.drawn import error_to_bound
from kvproof_suites.kernel.oracle import attend_dense
from selftest.nightly.simulated_kernel import Form, simulate

LENGTHS = (37, 523, 2011, 8195, 32771)
DTYPES = ("float16", "bfloat16", "float32")
HEAD_DIM, BLOCK_SIZE, DRAWS = 128, 16, 20

Tokens = tuple[torch.Tensor, torch.Tensor]
"""keys and values, [context, HEAD_DIM]"""


def nothing(tokens: Tokens, generator: torch.Generator) -> Tokens:
    return tokens


def drop_a_token(tokens: Tokens, generator: torch.Generator) -> Tokens:
    kept = torch.arange(len(tokens[0])) != place(len(tokens[0]), generator)
    return tokens[0][kept], tokens[1][kept]


def read_a_stale_slot(tokens: Tokens, generator: torch.Generator) -> Tokens:
    return replace(tokens, place(len(tokens[0]), generator), 1, generator)


def read_a_foreign_block(tokens: Tokens, generator: torch.Generator) -> Tokens:
    return replace(tokens, BLOCK_SIZE * place(len(tokens[0]) // BLOCK_SIZE, generator), BLOCK_SIZE, generator)


MISTAKES: dict[str, Callable[[Tokens, torch.Generator], Tokens]] = {
    "right": nothing,
    "dropped token": drop_a_token,
    "stale slot": read_a_stale_slot,
    "foreign block": read_a_foreign_block,
}


def place(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def replace(tokens: Tokens, start: int, count: int, generator: torch.Generator) -> Tokens:
    """Other numbers of the same kind at ``count`` positions from ``start``."""
    found = []
    for tensor in tokens:
        other = tensor.clone()
        other[start : start + count] = torch.randn(count, HEAD_DIM, generator=generator).to(tensor.dtype)
        found.append(other)
    return found[0], found[1]


def rejections(dtype: str, context: int, draws: int = DRAWS) -> dict[str, int]:
    """Mistake to the number of draws in which an output element leaves its bound."""
    found = dict.fromkeys(MISTAKES, 0)
    for seed in range(draws):
        for mistake, ratio in judge_draw(dtype, context, seed).items():
            found[mistake] += ratio > 1
    return found


def judge_draw(dtype: str, context: int, seed: int) -> dict[str, float]:
    """Largest error ÷ bound of one query, N(0, 1) throughout, for each mistake."""
    generator = torch.Generator().manual_seed(seed)
    query, keys, values = (
        torch.randn(count, HEAD_DIM, generator=generator).to(getattr(torch, dtype)) for count in (1, context, context)
    )
    spec, rounding = AttentionSpec(1, 1, HEAD_DIM, BLOCK_SIZE, dtype), Arithmetic.declared({}, dtype)
    want = attend_dense(query[:, None], keys[:, None], values[:, None], spec, rounding)
    found = {}
    for name, make in MISTAKES.items():
        out, _ = simulate(query, *make((keys, values), generator), spec.scale_value, rounding, Form())
        found[name] = float(error_to_bound(out[:, None].double(), want.out, want.out_bound).max())
    return found


def markdown(lengths: tuple[int, ...] = LENGTHS, draws: int = DRAWS) -> str:
    lines = ["| context | type | " + " | ".join(MISTAKES) + " |", "|---|---|" + "---|" * len(MISTAKES)]
    for context in lengths:
        for dtype in DTYPES:
            counts = " | ".join(f"{count}/{draws}" for count in rejections(dtype, context, draws).values())
            lines.append(f"| {context:,} | {dtype} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
