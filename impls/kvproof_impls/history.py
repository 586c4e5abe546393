"""The format of a history: what an allocator was asked to do and what it answered, as lines of JSON.

The first line says what the allocator was made with; each further one is an operation: its name, its arguments by
name, what came of it (``returned`` or ``raised``), and how many blocks were ``free`` after it. One definition serves
the recorder, the reader and the laws. Version 2 added ``commit_step``, ``preempt``, ``max_tokens``, ``items``,
``free``, and the copies of a step; version 1 is still read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable
from typing import Any

MARK = "kvproof_history"
VERSION = 2
READABLE = (1, 2)

FIELDS: dict[str, tuple[str, ...]] = {
    "allocate": ("seq", "tokens", "key", "max_tokens", "items"),
    "append": ("seq", "tokens"),
    "append_step": ("seqs", "tokens"),
    "free": ("seq",),
    "fork": ("parent", "child"),
    "commit": ("seq",),
    "reserve": ("seq", "num_tokens"),
    "truncate": ("seq", "num_tokens"),
    "swap_out": ("seq",),
    "swap_in": ("seq",),
    "reset_prefix_cache": (),
    "block_table": ("seq",),
    "can_allocate": ("num_tokens",),
    "commit_step": ("seqs",),
    "preempt": ("seq",),
}
"""Operations and the names of their arguments. ``block_table`` and ``can_allocate`` change nothing, and are only here
to be refused."""

QUESTIONS = ("block_table", "can_allocate")
OPTIONAL = ("key", "max_tokens", "items")


def head(allocator: Any) -> dict[str, Any]:
    """The first line of a history of ``allocator``."""
    return {
        MARK: VERSION,
        "num_blocks": int(allocator.num_blocks),
        "block_size": int(allocator.block_size),
        "allocator": type(allocator).__qualname__,
    }


def encoded(field: str, value: Any) -> Any:
    """An argument as JSON has it.

    Raises:
        TypeError: an id that JSON can't bring back as it was, or tokens that are no integers.
    """
    if field == "tokens":
        return value.tolist() if hasattr(value, "tolist") else [operator.index(token) for token in value]
    if field == "seqs":
        return [safe(seq) for seq in value]
    if field in ("num_tokens", "max_tokens"):
        return None if value is None else operator.index(value)
    if field == "items":
        return safe(tuple(map(tuple, value)))
    return safe(value)


def safe(value: Any) -> Any:
    """An id or a part of a key; a list stands for a tuple. Raises TypeError when JSON can't keep it apart."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, tuple):
        return [safe(part) for part in value]
    try:
        return operator.index(value)  # integers of NumPy and the like, which are equal to it and hash alike
    except TypeError:
        raise TypeError(
            f"a history can't keep {value!r} of type {kind.__qualname__}; "
            "give strings, integers, floats, or tuples of them as ids and keys"
        ) from None


def plain(returned: Any) -> Any:
    """A number of tokens, copies as pairs, or the slots and copies of a step."""
    if returned is None or isinstance(returned, int | str | dict):
        return returned
    slots = getattr(returned, "slot_mapping", None)
    if slots is not None:
        slots = slots.tolist() if hasattr(slots, "tolist") else [int(slot) for slot in slots]
        return {"slots": slots, "copies": pairs(getattr(returned, "copies", ()))}
    try:
        return pairs(returned)
    except TypeError:
        return repr(returned)


def pairs(copies: Iterable[Any]) -> list[list[int]]:
    return [[int(block) for block in pair] for pair in copies]


def hashable(value: Any) -> Hashable:
    """An id as JSON has it: a list stands for a tuple."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value
