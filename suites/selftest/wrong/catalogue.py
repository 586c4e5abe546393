"""What is known of a wrong implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Wrong(NamedTuple):
    factory: Callable[..., Any]
    """The class of a kernel, or of an allocator."""
    law: str
    """The law that must catch it; that it may break others as well does not matter."""
    origin: str
    """A public report of this mistake, or where else it comes from."""
    why: str
