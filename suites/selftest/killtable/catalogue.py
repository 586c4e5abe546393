"""Every wrong implementation of ``selftest.wrong``, each with the name that the table gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selftest.wrong.meant_laws import CATALOGUES, impl_name


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation and where it stands."""

    family: str
    """The module that holds it."""
    factory: Any
    impl: str
    """What ``--impl`` calls it."""
    law: str
    """The one meant for it."""
    origin: str
    why: str

    @property
    def name(self) -> str:
        return self.impl.rpartition(":")[2]

    @property
    def label(self) -> str:
        return f"{self.family}.{self.name}"

    @property
    def kind(self) -> str:
        return "allocator" if hasattr(self.factory, "allocate") else "kernel"


def discover() -> list[Mistake]:
    """In order of module, then as written; a module appears here as soon as it has a table ``WRONG``."""
    return [
        Mistake(family, wrong.factory, impl_name(family, wrong), wrong.law, wrong.origin, wrong.why)
        for family, catalogue in sorted(CATALOGUES.items())
        for wrong in catalogue.values()
    ]
