"""``kvproof sweep`` goes on where a run stopped, and tells a mistake before anything runs. Its processes are not
started here: ``test_bench_run`` shows what they do."""

import subprocess

import pytest
from click.testing import CliRunner

from kvproof_reports.records import RunWriter
from kvproof_suites import cli
from kvproof_suites.cli import judging


@pytest.fixture
def started(monkeypatch):
    """The commands that would be started; each leaves the records that it would."""
    commands = []

    def run(command, env, check):
        commands.append(command)
        folder = next(word.partition("=")[2] for word in command if word.startswith("--kvproof-results="))
        writer = RunWriter(folder)
        names = next(word.partition("=")[2] for word in command if word.startswith("--kvproof-impl="))
        if "--kvproof-bench" not in command:
            for name in names.split(","):
                writer.write(
                    "law", law="G18", sentence="x", test=name, implementation=name, outcome="verified", seconds=0.1
                )
        environment = {"python": "3.11"}
        implementations = [{"name": name} for name in names.split(",")]
        writer.write(
            "session",
            implementations=implementations,
            tier="smoke",
            seed=0,
            device="cpu",
            command=[],
            environment=environment,
        )
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(judging.subprocess, "run", run)
    return commands


def sweep(*arguments):
    return CliRunner().invoke(cli.main, ["sweep", *map(str, arguments)])


def test_a_sweep_judges_then_times_and_passes_on_what_to_time(started, tmp_path):
    told = sweep(
        "--impl=torch,paged", "--results", tmp_path / "run", "--points=2q1s40", "--block-sizes=8,16", "--seed=7"
    )
    assert told.exit_code == 0, told.output
    laws, bench = started
    assert "kvproof_suites" in laws
    assert {"kvproof_suites.bench", "--kvproof-bench", "--kvproof-seed=7", "--kvproof-profile=quick"} < set(bench)
    assert {"--kvproof-points=2q1s40", "--kvproof-block-sizes=8,16"} < set(bench)
    assert "--kvproof-resume" not in bench
    assert (tmp_path / "run" / "report.md").exists()


def test_a_sweep_that_is_resumed_does_not_judge_again(started, tmp_path):
    sweep("--impl=torch,paged", "--results", tmp_path / "run")
    started.clear()
    told = sweep("--impl=torch,paged", "--resume", tmp_path / "run")
    assert told.exit_code == 0, told.output
    (bench,) = started
    assert {"--kvproof-bench", "--kvproof-resume", f"--kvproof-results={tmp_path / 'run'}"} < set(bench)


def test_without_laws_nothing_is_judged(started, tmp_path):
    assert sweep("--impl=paged-python", "--results", tmp_path / "run", "--no-laws").exit_code == 0
    assert ["--kvproof-bench" in command for command in started] == [True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume=nowhere"], "--resume: nowhere holds no results.jsonl"),
        (["--resume=nowhere", "--results=there"], "leave --results out"),
        (["--points=8q1s1m"], "--points: '8q1s1m' is not"),
        (["--profile=qick"], "qick: No such file or directory; give one of quick, paper, full"),
        (["--impl=trch"], "Did you mean 'torch'?"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(started, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = sweep("--impl=torch", *arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert not started
    assert not list(tmp_path.iterdir())
