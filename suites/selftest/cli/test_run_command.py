"""``kvproof run`` goes from a kernel file to a verdict, a report and an exit code, in a folder that is not ours."""

import itertools
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvproof_reports.records import read_run
from kvproof_suites import cli
from kvproof_suites.cli import judging, replaying
from kvproof_traces import SAMPLES

KERNEL = """
import torch
from kvproof_impls import from_function

def attend(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale):
    return torch.zeros_like(query)

def factory():
    return from_function(attend)
"""
FEW_LAWS = "-k past_the_causal_limit"


def kvproof_run(folder, *arguments, laws=FEW_LAWS):
    command = [sys.executable, "-c", "from kvproof_suites.cli import main; main()", "run", "--mlflow=", *arguments]
    env = {"PATH": "", "PYTEST_ADDOPTS": laws, "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_the_template_conforms_to_every_law_and_the_report_says_so(tmp_path):
    assert CliRunner().invoke(cli.main, ["new", str(tmp_path / "my_kernel.py")]).exit_code == 0
    told = kvproof_run(tmp_path, "--impl=my_kernel:factory", "--no-bench", laws="")
    assert told.returncode == cli.CONFORMS, told.stdout + told.stderr
    (folder,) = (tmp_path / "results").iterdir()
    assert "my_kernel:factory: conforms" in told.stdout
    assert f"report: {folder.relative_to(tmp_path)}/report.html" in told.stdout
    assert {"results.jsonl", "report.md", "report.html", "junit.xml", "churned.json"} <= {
        path.name for path in folder.iterdir()
    }
    run = read_run(folder)
    assert {record["implementation"] for record in run.latest("replay")} == set(replaying.ALLOCATORS.split(","))
    memory = {r["block_size"] * r["num_blocks"] for r in run.latest("replay") if r["implementation"] == "paged"}
    assert memory == {replaying.BLOCK_SIZE * replaying.NUM_BLOCKS}
    sizes = sorted(r["block_size"] for r in run.latest("replay") if r["implementation"] == "paged")
    assert sizes == sorted([replaying.BLOCK_SIZE, *replaying.OTHER_BLOCK_SIZES])
    assert {record["outcome"] for record in run.latest("law")} <= {"verified", "refused", "not_run"}


def test_a_kernel_of_zeros_exits_with_1_and_is_still_reported(tmp_path):
    (tmp_path / "zeros.py").write_text(KERNEL)
    told = kvproof_run(tmp_path, "--impl=zeros:factory", "--no-bench", "--results=verdict")
    assert told.returncode == cli.LAW_BROKEN, told.stdout + told.stderr
    assert "zeros:factory: broken" in told.stdout
    assert "G18" in (tmp_path / "verdict" / "report.md").read_text()


def test_a_run_that_verifies_nothing_exits_with_5(tmp_path):
    told = kvproof_run(tmp_path, "--impl=torch", "--no-bench", laws="-k no_law_is_called_like_this")
    assert told.returncode == cli.NOTHING_VERIFIED, told.stdout + told.stderr


def run_here(*arguments):
    return CliRunner().invoke(cli.main, ["run", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--impl=tritn"], "Did you mean 'triton'?"),
        (["--impl=no_such_module:factory"], "ModuleNotFoundError: No module named 'no_such_module'"),
        (["--impl=torch", "--trace=nowhere.csv"], "nowhere.csv: No such file or directory"),
        (["--impl=torch", "--trace", SAMPLES / "azure_dirty.csv"], "azure_dirty.csv:3: TIMESTAMP"),
        (["--impl=torch", "--tier=all"], "'all' is not one of"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run_here(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert told.stderr.count("\n") <= 2
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_a_run_is_not_written_to(tmp_path):
    (tmp_path / "results.jsonl").write_text("{}\n")
    told = run_here("--impl=torch", "--results", tmp_path)
    assert told.exit_code == cli.USAGE_ERROR
    assert "holds a run already" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


@pytest.fixture
def started(monkeypatch):
    """The commands that a Judge starts, none of which is run; the codes they end with."""
    commands, codes = [], []

    def run(command, env, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 0)

    monkeypatch.setattr(judging.subprocess, "run", run)
    return commands, codes


def judge(folder, device="cpu"):
    return judging.Judge(folder, device=device, tier="full", seed=7, churned=folder / "churned.json")


def test_all_processes_of_a_run_share_folder_device_tier_seed_and_tables(started, tmp_path):
    commands, _ = started
    judge(tmp_path).laws("triton")
    judge(tmp_path).bench("triton")
    for command in commands:
        assert {"--kvproof-device=cpu", "--kvproof-tier=full", "--kvproof-seed=7"} < set(command)
        assert {f"--kvproof-results={tmp_path}", f"--kvproof-churned={tmp_path / 'churned.json'}"} < set(command)


def test_the_yardsticks_are_judged_before_they_are_timed_beside_the_implementation(started, tmp_path):
    commands, _ = started
    assert judge(tmp_path).bench("triton,paged") == 0
    laws, bench = commands
    assert "--kvproof-impl=torch" in laws
    assert {"kvproof_suites.bench", "--kvproof-impl=triton,paged,torch", "--kvproof-bench"} < set(bench)


def test_a_broken_yardstick_stops_the_benchmark(started, tmp_path):
    commands, codes = started
    codes.append(1)
    assert judge(tmp_path).bench("triton") == 1
    assert len(commands) == 1


@pytest.mark.parametrize(
    ("device", "num_gpus", "workers"),
    [("cpu", 0, ["2"]), ("cuda", 1, []), ("cuda", 4, ["4"]), ("cuda:1", 4, [])],
)
def test_a_gpu_is_not_shared_by_two_processes(started, tmp_path, monkeypatch, device, num_gpus, workers):
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    commands, _ = started
    judge(tmp_path, device=device).laws("triton")
    assert [number for option, number in itertools.pairwise(commands[0]) if option == "-n"] == workers


def test_a_benchmark_has_the_machine_to_itself(started, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    commands, _ = started
    judge(tmp_path, device="cuda").bench("triton")
    assert "kvproof_suites.bench" in commands[-1]
    assert "-n" not in commands[-1]


def test_a_crash_is_an_internal_error_and_named(started, tmp_path, capsys):
    _, codes = started
    codes.append(-11)
    assert judge(tmp_path).laws("triton") == cli.INTERNAL_ERROR
    assert "killed by signal 11" in capsys.readouterr().err
