"""A program that breaks a law is told as the shortest one that still does."""

from __future__ import annotations

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.programs import Program, applies, joined_steps, renamed, shortest
from selftest.wrong.copy_on_write import SkipCopyOnWrite


def driver(num_blocks: int, block_size: int) -> Driver:
    return Driver(SkipCopyOnWrite(num_blocks, block_size), {"C1"})


def test_a_chain_of_forks_and_appends_becomes_one_prompt_one_fork_and_one_step() -> None:
    steps = (
        ("allocate", ("a", [])),
        ("fork", ("a", "b")),
        ("append", ("b", [1])),
        ("fork", ("b", "c")),
        ("append_step", (["c", "a"], [2, 2])),
        ("append", ("b", [3])),
    )
    broken = shortest(Program(6, 4, steps), driver)
    assert broken is not None
    program = [line.strip() for line in str(broken).splitlines() if line.strip().startswith("allocator.")]
    assert program == [
        "allocator.allocate('a', [0])",
        "allocator.fork('a', 'c')",
        "allocator.append_step(['c', 'a'], [2, 2])",
    ]


def test_a_prompt_takes_in_what_is_appended_later() -> None:
    steps = (("allocate", ("a", [1], ("key",))), ("allocate", ("b", [])), ("append", ("a", [2, 3])))
    assert list(joined_steps(steps)) == [(("allocate", ("a", [1, 2, 3], ("key",))), ("allocate", ("b", [])))]


def test_a_parent_stands_for_its_child_in_rows_too() -> None:
    assert renamed((["a", "b"], [1, 2]), "b", "c") == (["a", "c"], [1, 2])
    assert renamed(("b", "d"), "b", "a") == ("a", "d")


def test_a_step_without_rows_or_with_one_twice_is_left_out() -> None:
    machine = driver(4, 2)
    machine.allocate("a", [1])
    assert applies(machine, ("append_step", (["a"], [1])))
    assert not applies(machine, ("append_step", (["a", "a"], [1, 1])))
    assert not applies(machine, ("append_step", ([], [])))
