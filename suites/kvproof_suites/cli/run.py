"""``kvproof run``: replay, laws, benchmark, report and log, in one go."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvproof_suites import cli
from kvproof_suites.cli import publishing, replaying, run_folders
from kvproof_suites.cli.bench_options import NAMES, as_plugin_options, bench_options, require_plan
from kvproof_suites.cli.judging import Judge
from kvproof_suites.cli.terminal import show_table
from kvproof_suites.cli.trace_reading import reading_options
from kvproof_suites.options import TIERS

if TYPE_CHECKING:
    from kvproof_traces import Trace

STOPPED = (cli.INTERRUPTED, cli.INTERNAL_ERROR, cli.USAGE_ERROR)
"""Exit codes of the laws after which there is nothing to benchmark or to publish."""


@click.command(short_help="Laws, benchmark, log and report in one go.")
@click.option("--impl", default="triton", show_default=True, help="What to judge, separated by commas.")
@click.option("--trace", type=click.Path(path_type=Path), help="Replayed first; without it, a made-up sample.")
@reading_options
@click.option("--device", help="cpu, cuda, cuda:1; without it, cuda where there is one.")
@click.option("--tier", type=click.Choice(TIERS), default="smoke", show_default=True, help="How much to try.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all drawn data.")
@click.option("--results", "folder", type=click.Path(path_type=Path), help="Of this run; else results/<time>-<impl>.")
@click.option(
    "--mlflow",
    "uri",
    envvar="MLFLOW_TRACKING_URI",
    show_envvar=True,
    default="sqlite:///mlflow.db",
    show_default=True,
    help='Tracking URI; "" for none.',
)
@click.option("--bench/--no-bench", default=True, show_default=True, help="Time what was verified.")
@bench_options
def command(
    impl: str,
    trace: Path | None,
    device: str | None,
    tier: str,
    seed: int,
    folder: Path | None,
    uri: str,
    bench: bool,
    **more: Any,
) -> None:
    """Judge implementations, benchmark them, log the results and write a report.

    The trace goes through the allocators first; the block tables that it leaves behind feed laws and benchmark. The
    benchmark compares with the plain torch kernel and our allocator, which are judged as well.

    \b
    kvproof run --impl=triton
    kvproof run --impl=my_kernel:factory --device=cuda --tier=full
    kvproof run --impl=cpu --points=32q1s2k --block-sizes=16,64

    \b
    Exit code: that of the laws. 0 conforms, 1 a law is broken, 2 interrupted, 3 internal error, 4 usage error,
    5 nothing verified.
    """
    device = device or default_device()
    given = {name: more.pop(name) for name in (option.replace("-", "_") for option in NAMES)}
    require_plan(device, given, replaying.load_own(impl))
    loaded = replaying.load_trace(trace, replaying.LIMIT, **more)
    folder = claim(folder or results_folder(impl))
    churned = _replay(loaded, folder)
    judge = Judge(folder, device=device, tier=tier, seed=seed, churned=churned, bench_options=as_plugin_options(given))
    status = judge.laws(impl)
    if status in STOPPED:
        raise click.exceptions.Exit(status)
    if bench and status != cli.NOTHING_VERIFIED:
        status = judge.bench(impl) or status
    publish(folder, uri)
    raise click.exceptions.Exit(status)


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def results_folder(impl: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9]+", "-", impl).strip("-")
    return Path("results", f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}")


def claim(folder: Path) -> Path:
    """One folder holds one run: two of them in one file would be a verdict on neither."""
    if (folder / "results.jsonl").exists():
        raise click.ClickException(f"{folder} holds a run already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from None
    return folder


def _replay(trace: Trace, folder: Path) -> Path | None:
    """Replay through our allocators, record what came of it, and leave their tables in the folder."""
    from kvproof_reports.records import RunWriter

    allocators = replaying.load_allocators(replaying.ALLOCATORS)
    block_size, num_blocks = replaying.BLOCK_SIZE, replaying.NUM_BLOCKS
    replayed = list(replaying.replay_through(allocators, trace, block_size=block_size, num_blocks=num_blocks))
    writer = RunWriter(folder)
    for one in (*replayed, *replaying.replay_other_block_sizes(allocators[0], trace)):
        writer.write("replay", **one.record())
    pool = f"{num_blocks:,} blocks of {block_size} tokens"
    click.echo(f"{len(trace.requests):,} requests of {replaying.name_of(trace)}, {pool}")
    show_table(replaying.COLUMNS, map(replaying.table_row, replayed))
    churned = folder / "churned.json"
    return churned if replaying.write_churned(replayed, churned) else None


def publish(folder: Path, uri: str) -> None:
    """The report first, because MLflow keeps it with the run."""
    runs = run_folders.read([folder])
    written = publishing.write_reports(runs, folder)
    logged = bool(uri) and publishing.log_to_mlflow(folder, uri)
    publishing.conclude(runs[0], written, uri if logged else None)
