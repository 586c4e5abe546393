"""The options of ``kvproof run`` and ``kvproof sweep`` that say what is timed; the plugin's have the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvproof_suites.options import OPTIONS

if TYPE_CHECKING:
    from kvproof_impls.registry import Implementation

NAMES = ("profile", "points", "block-sizes", "tables", "model", "threads")

Command = TypeVar("Command", bound=Callable[..., Any])


def bench_options(command: Command) -> Command:
    for name in reversed(NAMES):
        settings = OPTIONS[name]
        option = click.option(
            f"--{name}", metavar=settings["metavar"], default=settings["default"], help=settings["help"]
        )
        command = option(command)
    return command


def require_plan(device: str, given: Mapping[str, str | None], implementations: Sequence[Implementation]) -> None:
    """Before anything runs.

    Raises:
        click.UsageError: an option or a profile that means nothing, or a block size that no implementation supports.
    """
    from kvproof_suites.bench.planning import make_plan, require_some_support
    from kvproof_suites.bench.profiles import ProfileError

    kernels = {one.name: one.kernel for one in implementations if one.kernel is not None}
    try:
        require_some_support(make_plan(device, **given), kernels)
    except ProfileError as error:
        raise click.UsageError(str(error)) from None


def as_plugin_options(given: Mapping[str, str | None]) -> tuple[str, ...]:
    return tuple(f"--kvproof-{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None)
