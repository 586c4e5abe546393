"""Token ids for a library that slices, compares and hashes lists of Python ints."""

from __future__ import annotations

from typing import Any


def int32_list(tokens: Any, why: str) -> list[int]:
    """``tokens``, a list or an array, as a list.

    Raises:
        ValueError: one past int32; the text is ``why``.
    """
    listed: list[int] = tokens if tokens.__class__ is list else getattr(tokens, "tolist", lambda: list(tokens))()
    low, high = (listed[0], listed[0]) if len(listed) == 1 else (min(listed, default=0), max(listed, default=0))
    if low < -(2**31) or high >= 2**31:
        raise ValueError(why)
    return listed
