"""``kvproof gate``: whether a run may pass, seen from a baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvproof_suites import cli
from kvproof_suites.cli import run_folders
from kvproof_suites.cli.gate_rerun import run_again
from kvproof_suites.cli.terminal import note, say, show_json, show_table

if TYPE_CHECKING:
    from kvproof_reports.gate import Gate
    from kvproof_reports.gate_rules import Rules
    from kvproof_reports.records import Run


@click.command(short_help="Whether a run may pass, seen from a baseline.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--baseline", required=True, metavar="FILE", help="A results file to compare with, or an MLflow run id.")
@click.option("--rules", "rules_file", type=click.Path(path_type=Path), help="TOML; without it, the rules above.")
@click.option("--impl", "names", help="Only these implementations, separated by commas.")
@click.option(
    "--rerun",
    "num_reruns",
    type=click.IntRange(0, 20),
    default=0,
    metavar="N",
    help="Time up to N times again, each in a new process, what may be slower, until it can be told, and once what is "
    "slower; all samples count.",
)
@click.option("--update", is_flag=True, help="Show the difference, and write FILE anew from the RUNs.")
@click.option("--allow-other-machine", is_flag=True, help="Compare with a baseline of another machine or version.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the files; without it, the first RUN.")
@click.option("--mlflow", "uri", help="Tracking URI; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def command(
    runs: tuple[str, ...],
    baseline: str,
    rules_file: Path | None,
    names: str | None,
    num_reruns: int,
    update: bool,
    allow_other_machine: bool,
    output: Path | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Compare RUNs with a baseline: laws newly broken, coverage lost, benchmarks slower with confidence.

    RUN is a folder that holds a results.jsonl, such a file, or the id of an MLflow run. Several RUNs count as one: the
    worst outcome of a test, all samples of a benchmark. Timings differ from process to process: give a baseline of
    five runs and --rerun=5, and --threads=1 to the runs where others use the cores as well (docs/ci.md).

    \b
    kvproof gate --baseline=baseline.jsonl --update results/monday results/tuesday
    kvproof gate --baseline=baseline.jsonl --rerun=5 results/today

    Prints a table, and writes gate.json, gate.junit.xml and, where GITHUB_STEP_SUMMARY is set, a step summary. Each
    rule fails, warns, or is off. Without --rules these fail, and what can't be told warns:

    \b
    [law_broken]            a test that held, or is new, is broken
    [coverage_lost]         a test or a benchmark that ran does not run
    [slower]                threshold = 0.03, confidence = 0.95 (of the whole gate)
    [ambiguous]             action = "warn"
    [implementation.torch.slower]
    action = "off"          an exception for one implementation

    \b
    Exit codes: 0 passes, or a baseline was written; 1 a rule fails; 2 interrupted; 3 internal error; 4 usage error,
    a faulty file, or a baseline that is refused: another machine or version, or nothing in common.
    """
    rules, found = _rules(rules_file), run_folders.read_anywhere(runs, uri)
    only, folder = [name.strip() for name in (names or "").split(",") if name.strip()], output or _folder(runs[0])
    _require_baseline(baseline, update)
    gate = None
    if not update or Path(baseline).exists():
        from kvproof_reports.gate import judge

        old = run_folders.read_one_anywhere(baseline, uri)
        judge_runs = partial(judge, old, rules=rules, names=only, any_machine=allow_other_machine or update)
        gate, found = _settle(judge_runs, found, num_reruns, folder, lenient=update)
    for told in (line for run in found for line in run.notes):
        say(told, err=True)
    if gate is not None:
        _tell(gate, folder, as_json)
    if update:
        _update(Path(baseline), found)
    elif gate is not None and gate.failed:
        raise click.exceptions.Exit(cli.LAW_BROKEN)


def _rules(path: Path | None) -> Rules:
    from kvproof_reports.gate_rules import Rules, RulesError, read_rules

    try:
        return read_rules(path) if path else Rules()
    except RulesError as error:
        raise click.ClickException(str(error)) from None


def _folder(run: str) -> Path:
    path = Path(run)
    return path if path.is_dir() else path.parent


def _require_baseline(baseline: str, update: bool) -> None:
    from kvproof_reports.mlflow_source import mlflow_run_id

    path, in_mlflow = Path(baseline), mlflow_run_id(baseline) is not None
    if update and path.is_dir():
        raise click.UsageError(f"{baseline} is a folder; --update writes a file, such as --baseline=baseline.jsonl")
    if update and in_mlflow:
        raise click.UsageError(
            f"{baseline} is a run in MLflow; --update writes a file; `kvproof log` sends a run there"
        )
    if not update and not path.exists() and not in_mlflow:
        raise click.UsageError(f"{baseline}: no such baseline; --update writes one from the RUNs")


def _settle(
    judge_runs: Callable[..., Gate], runs: list[Run], num_reruns: int, folder: Path, lenient: bool
) -> tuple[Gate | None, list[Run]]:
    """The verdict, after what is unsettled was timed again; and the runs, those included. ``lenient``: a baseline that
    is to be replaced may have nothing in common with the run."""
    from kvproof_reports.baseline import BaselineError
    from kvproof_reports.gate import share_of_look

    try:
        gate = judge_runs(runs, share=share_of_look(1, num_reruns + 1))
        for number in range(1, num_reruns + 1):
            if not gate.unsettled:
                break
            note(f"timing {len(gate.unsettled)} benchmarks again ({number} of {num_reruns})")
            runs = [*runs, run_again(gate.unsettled, runs, _new(folder))]
            gate = judge_runs(runs, share=share_of_look(number + 1, num_reruns + 1))
    except BaselineError as error:
        if not lenient:
            raise click.ClickException(str(error)) from None
        say(f"no difference to show: {error}", err=True)
        return None, runs
    return gate, runs


def _new(folder: Path) -> Path:
    """The first of rerun-1, rerun-2, ... that is not there."""
    number = 1
    while (folder / f"rerun-{number}").exists():
        number += 1
    return folder / f"rerun-{number}"


def _tell(gate: Gate, folder: Path, as_json: bool) -> None:
    from kvproof_reports import gate_report
    from kvproof_reports.whole import write_whole

    if as_json:
        show_json(gate_report.as_object(gate))
    else:
        show_table(gate_report.COLUMNS, gate_report.rows(gate))
        say(f"gate {gate.verdict}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "gate.json", gate_report.json_text(gate))
        write_whole(folder / "gate.junit.xml", gate_report.junit(gate))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with open(summary, "a", encoding="utf-8") as file:
                file.write(gate_report.markdown(gate))
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}; the gate {gate.verdict}") from None


def _update(path: Path, runs: Sequence[Run]) -> None:
    from kvproof_reports.baseline import BaselineError, write_baseline

    try:
        cells = write_baseline(path, runs)
    except BaselineError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{path}: not written: {error.strerror}") from None
    broken = sum(record["outcome"] == "broken" for record in cells.tests.values())
    click.echo(f"baseline: {path}: {len(cells.tests):,} tests, {len(cells.timed()):,} timed benchmarks", err=True)
    if broken:
        click.echo(f"{broken:,} of the tests are broken in it, and will not fail the gate", err=True)
