"""What the kills say about the laws: which of them are alone in catching something, and which are redundant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Broken = Mapping[str, set[str]]
"""Wrong implementation to the laws that it broke."""


@dataclass(frozen=True)
class Worth:
    """What one law adds to the others."""

    kills: frozenset[str]
    alone: tuple[str, ...]
    """Wrong implementations that no other law catches."""
    covered_by: tuple[str, ...]
    """Laws each of which catches all that this one catches."""


def worth_of_laws(broken: Broken) -> dict[str, Worth]:
    """Of every law that caught something, the ones that caught most first."""
    kills = {law: frozenset(name for name in broken if law in broken[name]) for laws in broken.values() for law in laws}
    return {
        law: Worth(
            caught,
            tuple(name for name in broken if broken[name] == {law}),
            tuple(other for other in sorted(kills) if other != law and caught <= kills[other]),
        )
        for law, caught in sorted(kills.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    }


def smallest_set(broken: Broken) -> list[str]:
    """Few laws that catch all that is caught, chosen greedily: the one with most new kills first."""
    left, chosen = {name for name in broken if broken[name]}, []
    while left:
        laws = sorted({law for name in left for law in broken[name]})
        best = max(laws, key=lambda law: sum(law in broken[name] for name in left))
        chosen.append(best)
        left = {name for name in left if best not in broken[name]}
    return chosen
