"""Public traces that some of the figures are about; they are read where they lie and none is shipped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvproof_traces import Request, load

AZURE = {
    "Azure conversation": "AzureLLMInferenceTrace_conv.csv",
    "Azure code": "AzureLLMInferenceTrace_code.csv",
}
MOONCAKE = {
    "conversation": "mooncake_conversation_trace.jsonl",
    "synthetic": "mooncake_synthetic_trace.jsonl",
}
ENDINGS = ("", ".gz", ".zst")


@cache
def requests(path: Path) -> tuple[Request, ...]:
    """All requests of a trace, read once.

    Raises:
        TraceError: naming file, line and field.
    """
    return tuple(load(path).requests)


def found(names: Mapping[str, str], folder: Path | None) -> dict[str, Path]:
    """The files of ``names`` that lie in ``folder``, plain or compressed."""
    if folder is None:
        return {}
    paths = {title: [folder / (name + ending) for ending in ENDINGS] for title, name in names.items()}
    return {title: next(filter(Path.exists, some)) for title, some in paths.items() if any(map(Path.exists, some))}


def missing(name: str) -> str:
    return f"needs {name} in --traces"
