"""``kvproof sweep``: the benchmark of a profile, and the rest of one that was interrupted."""

from __future__ import annotations

from pathlib import Path

import click

from kvproof_suites import cli
from kvproof_suites.cli import replaying
from kvproof_suites.cli.bench_options import as_plugin_options, bench_options, require_plan
from kvproof_suites.cli.judging import Judge
from kvproof_suites.cli.run import STOPPED, claim, default_device, publish, results_folder
from kvproof_suites.options import OPTIONS, TIERS


@click.command(short_help="Time a profile's cells; goes on after a crash.")
@click.option("--impl", default="triton", show_default=True, help="What to time, separated by commas.")
@bench_options
@click.option("--device", help="cpu, cuda, cuda:1; without it, cuda where there is one.")
@click.option("--tier", type=click.Choice(TIERS), default="smoke", show_default=True, help="Of the laws, run first.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all drawn data.")
@click.option("--results", "folder", type=click.Path(path_type=Path), help="Of this run; else results/<time>-<impl>.")
@click.option("--resume", "earlier", type=click.Path(path_type=Path), help="Folder of a run: do what it has not.")
@click.option("--mlflow", "uri", default="", help="Tracking URI, such as sqlite:///mlflow.db; without it, none.")
@click.option("--ray", metavar="ADDRESS", help=OPTIONS["ray"]["help"])
@click.option("--laws/--no-laws", default=True, show_default=True, help="Without them, rows are stamped.")
def command(
    impl: str,
    device: str | None,
    tier: str,
    seed: int,
    folder: Path | None,
    earlier: Path | None,
    uri: str,
    ray: str | None,
    laws: bool,
    **given: str | None,
) -> None:
    """Time implementations through a profile's cells, in turns, and write a report.

    The plain torch kernel and our allocator are timed beside them. Rows are in results.jsonl as soon as they are
    measured. Given the same options, --resume goes on after a crash or a
    reboot: laws that were judged and rows that were timed stay as they are.

    With --ray the laws run here, and what is compared is timed together on one machine of the cluster, or one GPU,
    which runs nothing else meanwhile. What a lost machine took with it is timed again, up to three times.

    \b
    kvproof sweep --impl=cpu,torch --profile=paper
    kvproof sweep --impl=cpu,torch --profile=paper --resume=results/20260101-120000-cpu-torch
    kvproof sweep --impl=cpu --points=8q1s1k,32q1s4k --block-sizes=16,64 --tables=dense,churned
    kvproof sweep --impl=triton --profile=full --ray=auto

    \b
    Exit code: 0 timed, 1 a law is broken, 2 interrupted, 3 internal error, 4 usage error, 5 nothing verified.
    """
    device = device or default_device()
    require_plan(device, given, replaying.load_own(impl))
    if ray is not None:
        _require_cluster(ray, device)
    folder = _continued(earlier, folder) if earlier else claim(folder or results_folder(impl))
    judge = Judge(folder, device, tier, seed, _churned(folder), as_plugin_options({**given, "ray": ray}))
    status = judge.laws(impl) if laws and not judge.has_judged(impl) else cli.CONFORMS
    if status not in STOPPED and status != cli.NOTHING_VERIFIED:
        status = judge.bench(impl, resume=earlier is not None, with_laws=laws) or status
        publish(folder, uri)
    raise click.exceptions.Exit(status)


def _continued(earlier: Path, folder: Path | None) -> Path:
    if folder is not None:
        raise click.UsageError("--resume writes into the folder that it names; leave --results out")
    if not (earlier / "results.jsonl").is_file():
        raise click.UsageError(f"--resume: {earlier} holds no results.jsonl; name the folder of a run")
    return earlier


def _require_cluster(address: str, device: str) -> None:
    """Before the laws, which take longer than asking."""
    from kvproof_suites.bench.ray_cluster import ClusterError, resources_of_call

    try:
        resources_of_call(address, device)
    except ClusterError as error:
        raise click.UsageError(str(error)) from None


def _churned(folder: Path) -> Path | None:
    """The tables that ``kvproof run`` left in its folder; its benchmark was made with them."""
    path = folder / "churned.json"
    return path if path.is_file() else None
