"""The sections of the comparison, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproof_suites.paper import (
    block_sizes,
    chat,
    composition,
    kv_bytes,
    prefix_hits,
    sharing,
    watermarks,
    worked_example,
)
from kvproof_suites.paper.claim import Claim, Computed


@dataclass(frozen=True)
class Section:
    """Claims that are computed together."""

    name: str
    title: str
    lead: str
    """What is compared, and how ours is computed."""
    claims: Sequence[Claim]
    compute: Callable[[Path | None], Computed]
    """Takes the folder with the public traces, or None."""
    reads_files: bool = False


SECTIONS = (
    Section(
        "worked-example",
        "Four sequences against thirteen",
        "Sixteen requests ask for a pool of 128 blocks of 16 tokens; the model allows 512. The allocators are asked "
        "one after the other, as the laws ask them. The number says little without the rule of admission beside it.",
        worked_example.CLAIMS,
        lambda _: worked_example.compute(),
    ),
    Section(
        "kv-bytes",
        "Bytes a token",
        "K and V of every layer and KV head, or MLA's one latent. KB is 1,024 bytes in the papers of vLLM and Mooncake "
        "and 1,000 in DeepSeek's table.",
        kv_bytes.CLAIMS,
        lambda _: kv_bytes.compute(),
    ),
    Section(
        "composition",
        "What fills the pool, and how many sequences run",
        "Requests with the published mean lengths wait for a pool of 15,700 slots, first come, first served, and Orca "
        "reserves by the buddy system in three ways. Of the lengths no more than the means is published: log-normal "
        "ones stand in for them. ShareGPT's figures hardly depend on how they spread, Alpaca's batches do: with a "
        "coefficient of variation of 0.9 or 1.1 instead of 1.0 for the outputs, Oracle runs 80 or 68 sequences. The "
        "fourth part of the pool is what the three others leave, and so carries the errors of all: Pow2's, 5.6 "
        "points below the paper's, is the largest difference here.",
        composition.CLAIMS,
        lambda _: composition.compute(),
    ),
    Section(
        "chat",
        "Chats cut at 1,024 tokens",
        "The buddy system rounds 1,025 slots up to 2,048, whatever is known of the answer.",
        chat.CLAIMS,
        lambda _: chat.compute(),
    ),
    Section(
        "sharing",
        "Samples and beams of one prompt",
        "The saving is blocks saved by sharing ÷ blocks without sharing. Two figures are over all steps and at the end "
        "of the requests: the paper does not say which it means. A beam search has a history that no trace carries; "
        "ours is a Moran model: beams are replaced at random, at a rate that is printed.",
        sharing.CLAIMS,
        lambda _: sharing.compute(),
    ),
    Section(
        "watermarks",
        "Utilisation with the preemptions that it costs",
        "A saturated server, ShareGPT-like, whose admissions leave a share of the blocks free; a preempted request is "
        "computed again. A harness that reports utilisation alone rewards thrashing.",
        watermarks.CLAIMS,
        lambda _: watermarks.compute(),
    ),
    Section(
        "block-sizes",
        "Waste by block size",
        "The other half of the paper's figure, the time of the kernel, needs a GPU. On long prompts block size hardly "
        "matters for waste.",
        block_sizes.CLAIMS,
        block_sizes.compute,
        reads_files=True,
    ),
    Section(
        "prefix-hits",
        "Hit rate against capacity",
        "Mooncake's traces through a prefix cache of blocks of 512 tokens that evicts the least recently used, the "
        "tail of a prompt before its head.",
        prefix_hits.CLAIMS,
        prefix_hits.compute,
        reads_files=True,
    ),
)
