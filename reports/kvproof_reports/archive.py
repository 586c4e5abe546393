"""What a page unpacks for itself: gzip in base64, a third of the size."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping

from kvproof_reports.extras import need


def pack(text: str) -> str:
    """The same text gives the same archive."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), 9, mtime=0)).decode("ascii")


def pack_json(value: object) -> str:
    """Base64 holds no character that means anything to HTML, so that nothing in ``value`` can end its script."""
    return pack(json.dumps(_rounded(value), allow_nan=False, separators=(",", ":")))


def _rounded(value: object) -> object:
    """Six digits, as many as samples are recorded with: the rest is noise, which can't be packed. What has no end is a
    gap: JSON has no infinity, and a plot no place for it."""
    if isinstance(value, Mapping):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(entry) for entry in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def plotly() -> str:
    """The whole of plotly.js.

    Raises:
        MissingExtra: plotly is not installed.
    """
    return pack(str(need("plotly.offline", "report").get_plotlyjs()))
