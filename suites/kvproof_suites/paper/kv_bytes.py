"""Bytes that one token takes in the KV cache of models whose papers state it, and what follows for a pool."""

from __future__ import annotations

from kvproof_reference import KV_FORMATS, ModelShape, kv_bytes_per_token
from kvproof_suites.paper.claim import EXACT, Claim, Computed, percent

VLLM, MOONCAKE = "Kwon et al. 2023", "Qin et al. 2025 (Mooncake)"
DEEPSEEK = "arXiv 2505.09343, table of KV sizes"

SHAPES = {
    "OPT-13B": ModelShape(40, 40, 128),
    "Llama-3-70B": ModelShape(80, 8, 128),
    "Llama-3.1-405B": ModelShape(126, 8, 128),
    "Qwen2.5-72B": ModelShape(80, 8, 128),
    "DeepSeek-V3": ModelShape(61, latent_rank=512, rope_dim=64),
}
"""Layers, KV heads, head dimension; MLA: the latent and its rotary part."""

CLAIMS = (
    Claim("OPT-13B", "OPT-13B, 16 bit", 800 * 1024, f"{VLLM}, section 3: 800 KB", EXACT, unit="bytes"),
    Claim("Llama-3-70B", "Llama-3-70B, 16 bit", 320 * 1024, f"{MOONCAKE}: 320 KB", EXACT, unit="bytes"),
    Claim("Llama-3.1-405B", "Llama-3.1-405B, 16 bit", 516_096, f"{DEEPSEEK}: 516.096 KB", EXACT, unit="bytes"),
    Claim("Qwen2.5-72B", "Qwen2.5-72B, 16 bit", 327_680, f"{DEEPSEEK}: 327.680 KB", EXACT, unit="bytes"),
    Claim("DeepSeek-V3", "DeepSeek-V3, MLA, 16 bit", 70_272, f"{DEEPSEEK}: 70.272 KB", EXACT, unit="bytes"),
    Claim(
        "longest",
        "OPT-13B, one request of 2,048 tokens",
        1.6,
        f"{VLLM}, section 3: 1.6 GB",
        percent(5),
        "published to two digits, and as GB or GiB: 1.68 or 1.56",
        unit="GB",
    ),
    Claim(
        "slots",
        "OPT-13B, slots in 12 GB",
        15_700,
        f"{VLLM}, table 1: 15.7K",
        percent(0.32),
        "published to a tenth of a thousand",
        unit="slots",
    ),
)


def compute() -> Computed:
    """By the oracle's formula: K and V of every layer and KV head, or MLA's one latent."""
    each = {name: kv_bytes_per_token(shape, KV_FORMATS["float16"]) for name, shape in SHAPES.items()}
    longest = 2048 * each["OPT-13B"]
    return Computed({**each, "longest": (longest / 2**30, longest / 1e9), "slots": 12 * 2**30 // each["OPT-13B"]})
