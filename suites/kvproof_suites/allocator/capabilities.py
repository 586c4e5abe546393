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


def require_wide_tokens(make_allocator: Any, token: int) -> None:
    """Refuse the test when the allocator refuses a token id past int32, which tells it apart from every other."""
    try:
        make_allocator(4, 4).allocate("a", [token])
    except ValueError:
        if -(2**31) <= token < 2**31:
            raise
        refuse(f"{make_allocator.name} takes no token ids past int32")


def require_counters(make_allocator: Any) -> None:
    if not hasattr(make_allocator(4, 4), "counters"):
        refuse(f"{make_allocator.name} declares no counters")


def require_window(make_allocator: Any) -> int:
    """The declared window; the test is refused where there is none."""
    window = getattr(make_allocator(4, 4), "window", None)
    if window is None:
        refuse(f"{make_allocator.name} declares no window")
    return int(window)


def require_reserved_block(make_allocator: Any) -> None:
    """Refuse the test when every block of the pool can be owned."""
    allocator = make_allocator(4, 4)
    if allocator.pool_blocks == allocator.num_blocks:
        refuse(f"{make_allocator.name} reserves no block")
