"""From the options of a run to the cells that its benchmark goes through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports.bounded import JSON_BYTES, read_text
from kvproof_suites import options
from kvproof_suites.bench.cells import Cell, HostCell, kernel_cells
from kvproof_suites.bench.heads import Heads, heads_of_model
from kvproof_suites.bench.profiles import HostSweep, Profile, ProfileError, Sweep, read_profile
from kvproof_suites.bench.standing import laws_of_run

DEFAULT_PROFILE = "quick"
OPERATIONS = ("allocate", "append", "append_step", "fork", "free", "prefix_hit")
MOST_SEQS = 64
"""Prompts of the allocator's calls: half the pool; one that reserves more than a prompt needs admits fewer."""
STEPS = ("append_step", "append and fill")


@dataclass(frozen=True)
class Plan:
    """What a benchmark goes through, and for how long."""

    kernels: tuple[Cell, ...]
    host: tuple[HostCell, ...]
    shares: tuple[float, ...]
    """Of requests with a common prefix, in the serving workload."""
    seconds: float
    """Budget of a row, once it is warm."""
    num_layers: int | None = None
    """Of the model, where there is one: what a step of it costs is told then."""
    threads: int | None = None
    """Of a launch on the host; None: one for each core."""

    def cells(self, group: str) -> list[Cell] | list[HostCell]:
        chosen = [cell for cell in self.kernels if cell.group == group]
        return chosen or [cell for cell in self.host if cell.group == group]

    @property
    def block_sizes(self) -> list[int]:
        return sorted({cell.block_size for cell in self.kernels})


def make_plan(
    device: str,
    profile: str | None = None,
    points: str | None = None,
    block_sizes: str | None = None,
    tables: str | None = None,
    model: str | None = None,
    threads: str | None = None,
) -> Plan:
    """The cells of ``profile``, in which what else is given, in lists by comma, takes the place of what it says.

    ``points`` take the place of those of attention; the profile's other kernel benchmarks keep theirs.

    Raises:
        ProfileError: naming the option or the field that means nothing, and what would.
    """
    chosen = read_profile(profile or DEFAULT_PROFILE)
    sizes = _texts("block-sizes", block_sizes)
    given: dict[str, tuple[Any, ...] | None] = {
        "points": _texts("points", points),
        "tables": _texts("tables", tables),
        "block_sizes": sizes and tuple(_whole("block-sizes", text) for text in sizes),
    }
    chosen = _overridden(chosen, {name: value for name, value in given.items() if value})
    try:
        cells = kernel_cells(chosen, device)
    except ProfileError as error:
        raise ProfileError(_by_option(str(error), given)) from None
    num_layers = None
    if model is not None:
        heads, num_layers = read_model(Path(model), device)
        cells = list(dict.fromkeys(replace(cell, heads=heads) for cell in cells))
    shares = chosen.serving.shares if chosen.serving else ()
    count = None if threads is None else _whole("threads", threads)
    return Plan(tuple(cells), tuple(host_cells(chosen)), tuple(map(float, shares)), chosen.seconds, num_layers, count)


def _overridden(profile: Profile, given: Mapping[str, Any]) -> Profile:
    everywhere = {name: value for name, value in given.items() if name != "points"}
    attention = tuple(replace(sweep, **given) for sweep in profile.attention)
    if "points" in given and not attention:
        attention = (Sweep(**given),)
    tables = {name: value for name, value in everywhere.items() if name != "tables"}
    host = {"block_sizes": everywhere["block_sizes"]} if "block_sizes" in everywhere else {}
    return replace(
        profile,
        attention=attention,
        write=tuple(replace(sweep, **tables) for sweep in profile.write),
        copy=tuple(replace(sweep, **tables) for sweep in profile.copy),
        allocator=profile.allocator and replace(profile.allocator, **host),
        step_tensors=profile.step_tensors and replace(profile.step_tensors, **host),
    )


def host_cells(profile: Profile) -> list[HostCell]:
    calls, steps = profile.allocator or HostSweep(()), profile.step_tensors or HostSweep(())
    found = [HostCell("allocator", name, size, MOST_SEQS) for size in calls.block_sizes for name in OPERATIONS]
    return found + [
        HostCell("step_tensors", name, size, batch)
        for size, batch, name in product(steps.block_sizes, steps.batches, STEPS)
    ]


def read_model(path: Path, device: str) -> tuple[Heads, int]:
    """Heads and layers of a Hugging Face ``config.json``."""
    try:
        config = json.loads(read_text(path, JSON_BYTES))
        if not isinstance(config, dict):
            raise ValueError(f"holds a {type(config).__name__}, not an object")
        return heads_of_model(config, device)
    except OSError as error:
        raise ProfileError(f"--model: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"--model: {path}: {error}") from None


def _texts(option: str, given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    found = tuple(filter(None, map(str.strip, given.split(","))))
    if not found:
        raise ProfileError(f"--{option}: names nothing; give a list with commas")
    return found


def _whole(option: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise ProfileError(f"--{option}: {text!r} is not a whole number from 1 to {1 << 20:,}")
    return int(text)


def _by_option(error: str, given: Mapping[str, Any]) -> str:
    """An error in what an option gave is told by the option's name, which its writer knows."""
    named = [name for name, value in given.items() if value and any(repr(one) in error for one in value)]
    return f"--{named[0].replace('_', '-')}: {error.rpartition(']: ')[2]}" if named else error


def require_some_support(plan: Plan, kernels: Mapping[str, Any]) -> None:
    """Raises ProfileError: a block size that no kernel of the run supports."""
    for size in plan.block_sizes if kernels else ():
        specs = {cell.heads.spec(size) for cell in plan.kernels if cell.block_size == size}
        reasons = {
            name: [reason for spec in specs if (reason := kernel.unsupported(spec))] for name, kernel in kernels.items()
        }
        if all(len(told) == len(specs) for told in reasons.values()):
            why = "; ".join(f"{name}: {told[0]}" for name, told in reasons.items())
            raise ProfileError(f"--block-sizes: {size}: nothing in this run supports it; leave it out ({why})")


def plan_of(config: pytest.Config, device: str) -> Plan:
    """Of the options of a run; made once.

    Raises:
        pytest.UsageError: an option or a profile that means nothing.
    """
    if PLAN not in config.stash:
        names = ("profile", "points", "block-sizes", "tables", "model", "threads")
        given = {name.replace("-", "_"): options.value(config, name) for name in names}
        try:
            config.stash[PLAN] = make_plan(device, **given)
        except ProfileError as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[PLAN]


def check_plan(config: pytest.Config, device: str, kernels: Mapping[str, Any]) -> None:
    """Before the first test.

    Raises:
        pytest.UsageError: as ``plan_of``; a block size that no kernel supports; a run to go by that can't be read.
    """
    from kvproof_reports.records import RecordError

    try:
        require_some_support(plan_of(config, device), kernels)
        if named := options.value(config, "verified-by"):
            laws_of_run(Path(named))
    except (ProfileError, RecordError) as error:
        raise pytest.UsageError(str(error)) from None


PLAN = pytest.StashKey[Plan]()
