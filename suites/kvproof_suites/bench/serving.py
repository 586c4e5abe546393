"""``python -m kvproof_suites.bench.serving --impl NAME``: the serving workload of allocators, for one of them.

It runs wherever kvproof imports, so that a library in an environment of its own is timed by the very same code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from kvproof_suites.exit_codes import LAW_BROKEN, NOTHING_VERIFIED, USAGE_ERROR

SHOWN = ("ns_per_append", "ns_per_append_stable", "us_per_admit", "us_per_admit_p99", "us_per_free", "us_per_step")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--impl", "name", required=True, metavar="NAME", help="An allocator, as for pytest --impl.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are taken over these.")
@click.option("--requests", "num_requests", type=click.IntRange(1), default=None, help="Fewer than 1,500, for a try.")
@click.option("--seed", default=0, show_default=True, help="Of all that is drawn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--turns", is_flag=True, help="One repeat for each line on standard input, one JSON line for each.")
def command(name: str, repeats: int, num_requests: int | None, seed: int, as_json: bool, turns: bool) -> None:
    """Serve 1,500 requests, 256 at a time, by an allocator, and time its calls.

    \b
    python -m kvproof_suites.bench.serving --impl paged
    python -m kvproof_suites.bench.serving --impl vllm --repeats 5 --json
    """
    from kvproof_impls.registry import ImplementationError, load
    from kvproof_suites.bench.serving_loop import NotServed
    from kvproof_suites.bench.turn_taker import serve
    from kvproof_suites.outcome import LawBroken

    try:
        implementation = load(name)
        if implementation.allocator is None:
            raise ImplementationError(f"{name} has no allocator")
        told = about(name, implementation.version, implementation.allocator)
        measure = prepared(implementation.allocator, num_requests, seed)
        if turns:
            serve(told, lambda request: measure())  # of side_by_side: while others have their turn it only waits
            return
        shown = told | {"workloads": merged([measure() for _ in range(repeats)])}
    except ImplementationError as error:
        fail(name, error, USAGE_ERROR, turns)
    except LawBroken as error:
        fail(name, error, LAW_BROKEN, turns)
    except NotServed as error:
        fail(name, error, NOTHING_VERIFIED, turns)
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        show(shown)


def about(name: str, version: str | None, make: Callable[[int, int], Any]) -> dict[str, Any]:
    """What is measured once: the memory of an empty pool."""
    from kvproof_suites.bench.bookkeeping import bytes_per_block
    from kvproof_suites.bench.serving_workload import BLOCK_SIZE

    size, how = bytes_per_block(make, BLOCK_SIZE)
    return {"implementation": name, "version": version, "bytes_per_block": size, "bytes_found_by": how}


def prepared(make: Callable[[int, int], Any], num_requests: int | None, seed: int) -> Callable[[], dict[str, Any]]:
    """A function that measures one repeat."""
    from kvproof_suites.bench import serving_figures
    from kvproof_suites.bench.serving_workload import NUM_REQUESTS, draw_stable

    serving_figures.warm_up(make)
    given, stable = serving_figures.workloads(num_requests or NUM_REQUESTS, seed), draw_stable()
    return lambda: serving_figures.repeat(make, given, stable)


def merged(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    from kvproof_suites.bench.serving_figures import summarize

    return {workload: summarize([each[workload] for each in repeats]) for workload in repeats[0]}


def show(shown: dict[str, Any]) -> None:
    from kvproof_suites.cli.terminal import show_table

    columns = ("workload", *SHOWN, "hit_rate", "min_free_blocks")
    rows = [
        [
            workload,
            *(f"{figures[name]:.4g}" for name in SHOWN),
            f"{figures['hit_rate']:.3f}",
            figures["min_free_blocks"],
        ]
        for workload, figures in shown["workloads"].items()
    ]
    show_table(columns, rows, title=f"{shown['implementation']} {shown['version'] or ''}")
    click.echo(f"{shown['bytes_per_block']:.1f} bytes of bookkeeping a block ({shown['bytes_found_by']})")


def fail(name: str, error: Exception, code: int, turns: bool) -> NoReturn:
    from kvproof_suites.bench.turn_taker import bare, say

    if turns:
        say({"reason": bare(name, error)})
    click.echo(f"{name}: not timed: {bare(name, error)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread, as a scheduler has; before torch is imported
    command()
