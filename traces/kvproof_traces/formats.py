"""The formats that can be read, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvproof_traces import (
    azure,
    bailian,
    burstgpt,
    distserve,
    flashinfer_trace,
    llmservingsim,
    mooncake,
    mooncake_variants,
    native,
    sharegpt,
    vidur,
)
from kvproof_traces.reading import Reader, Source


@dataclass(frozen=True)
class Format:
    """How a format is opened, and how it looks."""

    opener: Callable[[Source], Reader]
    looks: str


FORMATS: Mapping[str, Format] = {
    "azure": Format(azure.open_azure, f"CSV: {azure.HEADER}"),
    "azure-multimodal": Format(azure.open_multimodal, f"CSV: {azure.MULTIMODAL_HEADER}"),
    "burstgpt": Format(burstgpt.open_burstgpt, f"CSV: {burstgpt.HEADERS[0]}, or {burstgpt.HEADERS[1]}"),
    "vidur": Format(vidur.open_vidur, f"CSV with {', '.join(vidur.VIDUR)}"),
    "sarathi": Format(vidur.open_sarathi, f"CSV with {', '.join(vidur.SARATHI)}"),
    "mooncake": Format(
        mooncake.open_mooncake, f"JSON Lines of exactly {', '.join(mooncake.FIELDS)}; ms, an id for every 512 tokens"
    ),
    "dynamo": Format(mooncake_variants.open_dynamo, "as mooncake, an id for every hash_block_size tokens"),
    "timed_trace": Format(mooncake_variants.open_timed_trace, "as dynamo, in seconds: vLLM's timed_trace"),
    "aiperf": Format(
        mooncake_variants.open_aiperf, f"JSON Lines of some of {', '.join(mooncake_variants.AIPERF_FIELDS)}"
    ),
    "bailian": Format(bailian.open_bailian, f"JSON Lines of {', '.join(bailian.FIELDS)}"),
    "vllm-custom": Format(sharegpt.open_custom, f"JSON Lines of {', '.join(sharegpt.CUSTOM_FIELDS)}: vLLM's custom"),
    "sharegpt": Format(sharegpt.open_sharegpt, "JSON list of {conversations: [{from, value}, ...]}"),
    "distserve": Format(distserve.open_distserve, f"JSON list of {{{', '.join(distserve.REQUIRED)}}}"),
    "llmservingsim": Format(
        llmservingsim.open_llmservingsim, f"JSON Lines of {', '.join(llmservingsim.SINGLE[:3])}, or sub_requests"
    ),
    "flashinfer-trace": Format(
        flashinfer_trace.open_flashinfer_trace, f"JSON Lines of {', '.join(flashinfer_trace.FIELDS)}"
    ),
    "native": Format(native.open_native, f"JSON Lines of {', '.join(native.FIELDS)}"),
}
"""Known formats."""
