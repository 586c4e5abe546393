"""Requests with the mean lengths that the vLLM paper states of ShareGPT and Alpaca, of which it publishes no more.

Log-normal prompts and outputs stand in for the texts, whose licences keep them out of here. The means are published;
the spread is assumed, of the outputs the same in both. Percentiles of Alpaca that are known (prompts 14, 30, 72 and
outputs 44, 127, 271 tokens at the 50th, 90th and 99th) allow 0.65 to 0.8 and 0.9 to 1.0.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from kvproof_traces import Request
from kvproof_traces.distributions import LogNormal

MAX_MODEL_LEN = 2048
"""Tokens of OPT's longest sequence, prompt and output together."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens as published (Kwon et al. 2023, figure 11), and coefficients of variation as assumed."""

    mean_prompt_tokens: float
    mean_output_tokens: float
    prompt_variation: float
    output_variation: float


SHAREGPT = Lengths(161.31, 337.99, 1.6, 1.0)
ALPACA = Lengths(19.31, 58.45, 0.8, 1.0)


@cache
def requests(lengths: Lengths, num_requests: int, seed: int = 1) -> tuple[Request, ...]:
    """All wait from the start, which saturates a server. An output ends where the model's longest sequence does.

    Each of ``num_requests`` quantiles comes once, in an order drawn at random, so that no mean depends on the draw.
    """
    rng = random.Random(seed)
    prompts = quantiles(lengths.mean_prompt_tokens, lengths.prompt_variation, num_requests, rng)
    outputs = quantiles(lengths.mean_output_tokens, lengths.output_variation, num_requests, rng)
    return tuple(
        Request(f"r{i}", 0.0, num_prompt, min(num_output, MAX_MODEL_LEN - num_prompt))
        for i, (num_prompt, num_output) in enumerate(zip(prompts, outputs, strict=True))
    )


def quantiles(mean: float, variation: float, num: int, rng: random.Random) -> list[int]:
    length = LogNormal(mean, variation, MAX_MODEL_LEN - 1)
    values = [max(1, round(length.quantile((index + 0.5) / num))) for index in range(num)]
    rng.shuffle(values)
    return values
