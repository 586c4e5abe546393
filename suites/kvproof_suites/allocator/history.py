"""What an allocator was asked to do and what it answered, as lines of JSON that any allocator can be put through.

``kvproof_impls.history`` has the format, ``kvproof replay`` reads it.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvproof_impls.history import FIELDS, MARK, VERSION, plain

HISTORY = pytest.StashKey["History"]()
"""On a test: what its last driver was asked to do."""


@dataclass
class Operation:
    name: str
    args: tuple[Any, ...]
    returned: Any = None
    raised: str | None = None
    free: int | None = None
    """Free blocks after it, where they were recorded."""
    ended: bool = True
    """False when the process ended inside: what came of it nobody knows."""
    must_raise: str | None = None
    """The contract forbids the call: the error that it must end in."""

    def record(self) -> dict[str, Any]:
        known = FIELDS.get(self.name, tuple(f"argument_{i}" for i in range(len(self.args))))
        told = {"op": self.name, **dict(zip(known, self.args, strict=False))}
        if self.must_raise:
            return told | {"must_raise": self.must_raise}
        told |= {"raised": self.raised} if self.raised else {"returned": plain(self.returned)}
        return told | ({} if self.free is None else {"free": self.free})

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
