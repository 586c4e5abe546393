"""Finds the format of a trace from its first line."""

from __future__ import annotations

from pathlib import Path

from kvproof_traces import azure, mooncake, native
from kvproof_traces.json_rows import parse_object
from kvproof_traces.lines import TraceError, numbered_lines

FORMATS = {
    "azure": f"CSV with the header {azure.HEADER}",
    "mooncake": f"JSON Lines of exactly {', '.join(mooncake.FIELDS)}",
    "native": f"JSON Lines of {', '.join(native.FIELDS)}",
}
"""Known formats, and how each looks."""


def detect(path: str | Path) -> str:
    """The name of the format, a key of ``FORMATS``.

    Raises:
        TraceError: none of the known ones, which are listed.
        OSError: no such file.
    """
    number, text = next(numbered_lines(path), (1, ""))
    if text == azure.HEADER:
        return "azure"
    if not text.lstrip().startswith("{"):
        raise _unknown(path, "header", f"starts with {text[:60]!r}" if text else "is missing")
    fields = parse_object(path, number, text).keys()
    if fields == set(mooncake.FIELDS):
        return "mooncake"
    if foreign := [field for field in fields if field not in native.FIELDS]:
        raise _unknown(path, ", ".join(foreign), "in no format known here")
    return "native"


def _unknown(path: str | Path, field: str, what: str) -> TraceError:
    known = "; ".join(f"{name}: {looks}" for name, looks in FORMATS.items())
    return TraceError(path, 1, field, f"{what}: unknown trace format", f"known are {known}")
