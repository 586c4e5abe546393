"""The formats that can be read, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvproof_traces import azure, mooncake, native
from kvproof_traces.reading import Reader, Source

FORMATS: Mapping[str, str] = {
    "azure": f"CSV: {azure.HEADER}",
    "azure-multimodal": f"CSV: {azure.MULTIMODAL_HEADER}",
    "mooncake": f"JSON Lines of exactly {', '.join(mooncake.FIELDS)}, an id for every 512 tokens",
    "native": f"JSON Lines of {', '.join(native.FIELDS)}",
}
"""Known formats, and how each looks."""

OPENERS: Mapping[str, Callable[[Source], Reader]] = {
    "azure": azure.open_azure,
    "azure-multimodal": azure.open_multimodal,
    "mooncake": mooncake.open_mooncake,
    "native": native.open_native,
}
