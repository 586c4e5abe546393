"""Each law over random programs of operations, with writes at once and one step late where that can tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof_suites.allocator.capabilities import require, require_reserved_block
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.machine import machine_for
from kvproof_suites.allocator.programs import shortest
from kvproof_suites.outcome import LawBroken

PROGRAMS = {
    "A1": ["at once"],
    "A2": ["at once"],
    "A3": ["at once"],
    "A4": ["at once"],
    "A5": ["at once"],
    "A6": ["at once"],
    "A7": ["at once"],
    "B1": ["at once"],
    "B2": ["at once", "one step late"],
    "B3": ["at once"],
    "B4": ["at once", "one step late"],
    "B5": ["at once", "one step late"],
    "B9": ["at once"],
    "B10": ["at once"],
    "C1": ["at once", "one step late"],
    "C2": ["at once"],
    "D1": ["one step late"],
    "D4": ["at once"],
    "D5": ["one step late"],
    "E1": ["at once"],
    "E5": ["at once"],
}
NEEDS = dict.fromkeys(("B1", "B2", "B3", "B4", "B5"), "cached_prefix") | {
    "B9": "reset_prefix_cache",
    "C2": "fork",
    "D1": "swap_out",
    "D4": "truncate",
    "E1": "append_step",
    "B10": "append_step",
}
LATER = ("B10", "C2")
"""Laws whose directed tests say nearly all there is: their programs wait for the full tier."""

UNSHRUNK: dict[str, Any] = {
    "phases": (Phase.explicit, Phase.generate),
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
    "verbosity": Verbosity.quiet,
}


def marks(law: str) -> list[pytest.MarkDecorator]:
    tier = [pytest.mark.tier("full")] if law in LATER else []
    return [pytest.mark.law(law), *tier]


@pytest.mark.parametrize(
    ("law", "writes"),
    [pytest.param(law, mode, marks=marks(law)) for law, modes in PROGRAMS.items() for mode in modes],
)
def test_any_program_keeps_the_law(make_allocator: Any, law: str, writes: str) -> None:
    if law == "A4":
        require_reserved_block(make_allocator)
    if law in NEEDS:
        require(make_allocator, NEEDS[law])

    def make_driver(num_blocks: int, block_size: int) -> Driver:
        return Driver(make_allocator(num_blocks, block_size), {law}, late=writes == "one step late")

    machine, num_programs = machine_for(make_driver), 3 * settings().max_examples // 2
    try:
        run_state_machine_as_test(machine, settings=settings(max_examples=num_programs, **UNSHRUNK))
    except LawBroken as broken:
        assert machine.failing is not None, "a machine that breaks a law keeps its program"
        raise (shortest(machine.failing, make_driver) or broken) from None
