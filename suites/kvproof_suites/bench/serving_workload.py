"""What a serving engine asks of an allocator: 256 sequences decode while requests come and go, all drawn beforehand.

1,500 requests; prompts log-normal with a mean of 512 tokens, outputs geometric with a mean of 256. In the shared half
30 % of the requests have one of 16 system prompts of 73 blocks in front, so that 39 % of all prompt tokens can be
found cached. Token ids are int32 arrays that exist before any clock starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

MOST_RUNNING = 256
NUM_BLOCKS = 32_768
BLOCK_SIZE = 16
NUM_REQUESTS = 1_500

MEAN_PROMPT = 512
PROMPT_SIGMA = 0.8
"""Of the logarithm of a prompt's length."""
MEAN_OUTPUT = 256
SHARE_WITH_PREFIX = 0.3
NUM_PREFIXES = 16
PREFIX_TOKENS = 73 * BLOCK_SIZE
VOCABULARY = 128_000

NUM_STABLE_STEPS = 960
"""Decode steps of the batch in which nobody comes or goes: every sequence crosses 60 blocks. A quick
allocator is through it in some 5 ms: fewer steps would time cold caches."""
NUM_DRAWN_STEPS = 64
"""Rows of decode tokens; later steps begin again at the first."""


@dataclass(frozen=True)
class Workload:
    """Request i brings ``prompts[i]`` and ends after ``num_outputs[i]`` decode steps."""

    name: str
    prompts: tuple[Tokens, ...]
    num_outputs: tuple[int, ...]
    decoded: Tokens
    """[NUM_DRAWN_STEPS, MOST_RUNNING], a token for each row of a step."""
    singles: Sequence[Sequence[list[int]]]
    """The same tokens as lists of one, which is what ``append`` is given."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def draw(share_with_prefix: float, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Workload:
    """Requests that come and go. ``share_with_prefix``: how many of them begin with a common prefix, 0 to 1."""
    random = np.random.default_rng(seed)
    prefixes = [tokens(random, PREFIX_TOKENS) for _ in range(NUM_PREFIXES)]
    mean_log = math.log(MEAN_PROMPT) - PROMPT_SIGMA**2 / 2
    lengths = np.maximum(1, random.lognormal(mean_log, PROMPT_SIGMA, num_requests)).astype(int)
    has_prefix = random.random(num_requests) < share_with_prefix
    chosen = random.integers(NUM_PREFIXES, size=num_requests)
    prompts = []
    for length, shares, prefix in zip(lengths, has_prefix, chosen, strict=True):
        own = tokens(random, int(length))
        prompts.append(np.concatenate([prefixes[prefix], own]) if shares else own)
    outputs = random.geometric(1 / MEAN_OUTPUT, num_requests)
    name = f"{share_with_prefix:.0%} shared"
    return Workload(name, tuple(prompts), tuple(map(int, outputs)), *decode_tokens(random))


def draw_stable(num_seqs: int = MOST_RUNNING, num_steps: int = NUM_STABLE_STEPS, seed: int = 1) -> Workload:
    """One batch that is admitted at the start and decodes to the end: what a step costs when only tokens are new."""
    random = np.random.default_rng(seed)
    lengths = random.integers(MEAN_PROMPT // 2, 3 * MEAN_PROMPT // 2, num_seqs)
    prompts = tuple(tokens(random, int(length)) for length in lengths)
    return Workload("stable batch", prompts, (num_steps,) * num_seqs, *decode_tokens(random))


def tokens(random: np.random.Generator, num_tokens: int) -> Tokens:
    return random.integers(VOCABULARY, size=num_tokens, dtype=np.int32)


def decode_tokens(random: np.random.Generator) -> tuple[Tokens, list[list[list[int]]]]:
    rows = tokens(random, NUM_DRAWN_STEPS * MOST_RUNNING).reshape(NUM_DRAWN_STEPS, MOST_RUNNING)
    return rows, [[[token] for token in row] for row in rows.tolist()]
