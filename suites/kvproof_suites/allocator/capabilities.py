"""Capabilities are declared by presence; a law that needs an absent one is refused, and counted as that."""

from __future__ import annotations

from typing import Any

from kvproof_suites.outcome import refuse


def require(make_allocator: Any, *capabilities: str) -> None:
    """Refuse the test when the allocator lacks one of ``capabilities``."""
    allocator = make_allocator(4, 4)
    for capability in capabilities:
        if not callable(getattr(allocator, capability, None)):
            refuse(f"{make_allocator.name} declares no {capability}")
