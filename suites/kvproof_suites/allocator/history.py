"""What an allocator was asked to do and what it answered, as lines of JSON that any allocator can be put through.

The first line says what the allocator was made with; each further one is an operation: its name, its arguments by name,
and what came of it. ``kvproof replay`` reads it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import pytest

HISTORY = pytest.StashKey["History"]()
"""On a test: what its last driver was asked to do."""

VERSION = 1
MARK = "kvproof_history"

FIELDS: dict[str, tuple[str, ...]] = {
    "allocate": ("seq", "tokens", "key"),
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
}
"""Operations and the names of their arguments; all but the last two change the state, and those are only here to be
refused."""


@dataclass
class Operation:
    name: str
    args: tuple[Any, ...]
    returned: Any = None
    raised: str | None = None
    must_raise: str | None = None
    """The contract forbids the call: the error that it must end in."""

    def record(self) -> dict[str, Any]:
        known = FIELDS.get(self.name, tuple(f"argument_{i}" for i in range(len(self.args))))
        told = {"op": self.name, **dict(zip(known, self.args, strict=False))}
        if self.must_raise:
            return told | {"must_raise": self.must_raise}
        return told | ({"raised": self.raised} if self.raised else {"returned": plain(self.returned)})

    @property
    def ending(self) -> str | None:
        """How the call ends, where that is an error."""
        return f"must raise {self.must_raise}" if self.must_raise else self.raised

    def __str__(self) -> str:
        """The call as code."""
        return f"{self.name}({', '.join(map(repr, self.args))})"


@dataclass
class History:
    num_blocks: int
    block_size: int
    late: bool = False
    """Whether writes land one step late."""
    law: str | None = None
    """Broken at the last operation."""
    operations: list[Operation] = field(default_factory=list)

    def add(self, name: str, args: tuple[Any, ...], must_raise: str | None = None) -> Operation:
        self.operations.append(Operation(name, copy.deepcopy(args), must_raise=must_raise))
        return self.operations[-1]

    def program(self, allocator: str) -> list[str]:
        """The operations as code; of the calls that must be refused only the last, since the others changed nothing."""
        late = "  # writes land one step late" if self.late else ""
        kept = [op for op in self.operations if not op.must_raise or op is self.operations[-1]]
        lines = [f"allocator.{op}" + (f"  # {op.ending}" if op.ending else "") for op in kept]
        return [f"allocator = {allocator}({self.num_blocks}, {self.block_size}){late}", *lines]

    def text(self) -> str:
        head = {
            MARK: VERSION,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "late": self.late,
            "law": self.law,
        }
        return "".join(f"{json.dumps(line)}\n" for line in (head, *(op.record() for op in self.operations)))


def plain(returned: Any) -> Any:
    """A number of tokens, copies as pairs, or the slots of a step."""
    if returned is None or isinstance(returned, int | str):
        return returned
    slots = getattr(returned, "slot_mapping", None)
    if slots is not None:
        return [int(slot) for slot in slots]
    try:
        return [[int(block) for block in pair] for pair in returned]
    except TypeError:
        return repr(returned)


def hashable(value: Any) -> Hashable:
    """An id as JSON has it: a list stands for a tuple."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value
