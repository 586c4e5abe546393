"""Numbers from outside, for either of our allocators. Compiled code would take each as the type that it is, and the
small integers of NumPy overflow."""

from __future__ import annotations

from operator import index
from typing import Any

LARGEST = 2**31 - 1
"""Of what step tensors hold as int32: block ids, lengths."""


def whole(name: str, value: Any, least: int = 0, largest: int | None = LARGEST) -> int:
    """``value`` as a Python int.

    Raises:
        ValueError: it is no whole number, below ``least``, or above ``largest``.
    """
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} ({value!r}) must be a whole number") from None
    if number < least:
        raise ValueError(f"{name} ({number}) must be at least {least}")
    if largest is not None and number > largest:
        raise ValueError(f"{name} ({number}) must be at most {largest}")
    return number


def share(name: str, value: Any) -> Any:
    """``value``, a number from 0 up to, not including, 1.

    Raises:
        ValueError: anything else.
    """
    if not 0 <= value < 1:
        raise ValueError(f"{name}: {value} is not a share of the blocks; give 0 up to, not including, 1")
    return value
