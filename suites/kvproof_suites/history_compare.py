"""What an allocator did beside what a history has: refusals, hits, free blocks, copies and slots, block ids aside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvproof_suites.allocator.history import Operation
from kvproof_suites.allocator.shadow import shortened

KINDS = ("refusals", "hits", "free blocks", "copies", "slots")
"""What is compared. Block ids are not: a slot counts with its offset, and with whom it shares its block."""
MAY_REFUSE = ("allocate", "append", "append_step", "fork", "reserve", "swap_out", "swap_in")

Facts = dict[str, tuple[Any, Any]]
"""Kind to (what the allocator did, what the history has)."""


@dataclass(frozen=True)
class Answer:
    """What came of an operation."""

    raised: str | None
    returned: Any
    free: int


@dataclass
class Replayed:
    """What became of a history on one allocator."""

    num_operations: int = 0
    num_skipped: int = 0
    """On sequences that the allocator had no room for."""
    num_agreeing: Counter[str] = field(default_factory=Counter)
    num_differing: Counter[str] = field(default_factory=Counter)
    difference: str | None = None
    """Where an answer first differs from the one in the history."""
    before: list[str] = field(default_factory=list)
    """The state before the operation at which it first differs."""
    broken: str | None = None
    """The operation, the law that it breaks, and the state before it."""


def tally(found: Replayed, operation: Operation, answer: Answer, block_size: int) -> str | None:
    """Count each kind; how the first that differs does so, in words."""
    first = None
    for kind, (gave, recorded) in facts(operation, answer, block_size).items():
        (found.num_agreeing if gave == recorded else found.num_differing)[kind] += 1
        if gave != recorded and first is None:
            first = in_words(kind, operation, answer)
    return first


def facts(operation: Operation, answer: Answer, block_size: int) -> Facts:
    """What can be compared of an operation."""
    if not operation.ended or operation.must_raise:
        return {}
    found: Facts = {}
    if operation.name in MAY_REFUSE or operation.raised or answer.raised:
        found["refusals"] = (answer.raised, operation.raised)
    if operation.free is not None:
        found["free blocks"] = (answer.free, operation.free)
    if operation.raised or answer.raised:
        return found
    if operation.name == "allocate":
        found["hits"] = (answer.returned, operation.returned)
    elif operation.name in ("append", "append_step", "fork", "reserve", "swap_out", "swap_in"):
        found["copies"] = (fan_out(answer.returned), fan_out(operation.returned))
    gave, recorded = slots(answer.returned), slots(operation.returned)
    if gave is not None and recorded is not None:
        found["slots"] = (renamed(gave, block_size), renamed(recorded, block_size))
    return found


def in_words(kind: str, operation: Operation, answer: Answer) -> str:
    if kind == "free blocks":
        return f"left {answer.free} free blocks, the history has {operation.free}"
    if kind == "slots":
        gave, recorded = slots(answer.returned) or [], slots(operation.returned) or []
        return f"gave the slots {shortened(gave)}, the history has {shortened(recorded)}"
    if kind == "copies":
        gave, recorded = copies(answer.returned), copies(operation.returned)
        return f"gave the copies {gave}, the history has {recorded}"
    return f"gave {answer.raised or answer.returned}, the history has {operation.raised or operation.returned}"


def copies(returned: Any) -> list[Any]:
    """Pairs of blocks, of a call or of a step."""
    if isinstance(returned, dict):
        return list(returned.get("copies", []))
    return [pair for pair in returned or [] if isinstance(pair, list | tuple)]


def fan_out(returned: Any) -> list[int]:
    """How many copies each source has, the names of blocks and the order of copies aside."""
    return sorted(Counter(source for source, _ in copies(returned)).values())


def slots(returned: Any) -> list[int] | None:
    if isinstance(returned, dict):
        return list(returned["slots"])
    numbers = isinstance(returned, list) and returned and all(type(slot) is int for slot in returned)
    return list(returned) if numbers else None  # version 1


def renamed(slots: list[int], block_size: int) -> list[tuple[int, int]]:
    """(block, offset) of each slot, blocks numbered as they come."""
    names: dict[int, int] = {}
    return [(names.setdefault(slot // block_size, len(names)), slot % block_size) for slot in slots]
