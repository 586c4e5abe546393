"""A GPU run is a list of commands that can be read first, and no step hides what became of another."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof_impls import environments, registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_suites.bench.cells import kernel_cells
from kvproof_suites.bench.heads import Heads
from kvproof_suites.bench.profiles import read_profile
from kvproof_suites.gpu import __main__ as gpu
from kvproof_suites.gpu import notes, sanitizer
from kvproof_suites.gpu.steps import LAWS, SHAPES, absent, steps, sweep
from kvproof_suites.options import OPTIONS
from kvproof_suites.step import FAILED, NOT_RUN, PASSED, Step, run

FOLDER = Path("results", "gpu")


def python(text):
    return (sys.executable, "-c", text)


@pytest.fixture
def no_sanitizer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "CUDA_FOLDER", str(tmp_path))


@pytest.fixture
def a_sanitizer(monkeypatch, tmp_path):
    """A program of that name which writes ``log`` and exits with ``code``, without running anything."""

    def install(log, code=0):
        program = tmp_path / sanitizer.PROGRAM
        program.write_text(
            f"#!{sys.executable}\nimport pathlib, sys\n"
            f"pathlib.Path(sys.argv[sys.argv.index('--log-file') + 1]).write_text({log!r})\nsys.exit({code})\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(sanitizer, "CUDA_FOLDER", str(tmp_path))
        monkeypatch.setenv("PATH", "")

    return install


def test_every_implementation_has_a_step_of_its_own_at_the_full_tier():
    listed = steps(["triton", "flashinfer"], FOLDER, Path("azure.csv"))
    commands = [" ".join(step.command) for step in listed[:2]]
    for name, command in zip(("triton", "flashinfer"), commands, strict=True):
        assert f"--impl={name} --device=cuda --tier=full --results={FOLDER / name} --trace=azure.csv" in command


def test_all_that_needs_a_gpu_takes_part_unless_names_are_given():
    names = gpu.IMPLEMENTATIONS.split()
    assert names[0] == "triton"
    assert set(names[1:]) == {name for name, entry in BUILT_IN.items() if entry.needs_cuda}
    assert {"flash-attn-3", "flashinfer-fa3", "torch-varlen", "tensorrt-llm"} <= set(names)


def test_what_is_not_available_is_not_run_with_the_reason_and_stops_nothing(tmp_path):
    reasons = {"flash-attn-3": "needs flash_attn_interface: build it"}
    listed = steps(["flash-attn-3", "triton"], tmp_path, None, missing=reasons.get)
    assert [step.missing for step in listed[:2]] == [reasons["flash-attn-3"], None]
    outcome = run(listed[0])
    assert (outcome.status, outcome.detail) == (NOT_RUN, reasons["flash-attn-3"])


def test_an_implementation_is_absent_by_what_the_registry_says(monkeypatch):
    monkeypatch.setattr(registry, "unavailable", lambda name: f"no {name}")
    assert absent("flashinfer") == "no flashinfer"
    assert absent("package.module:factory") is None


def test_only_the_own_environment_knows_what_is_in_it(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "unavailable", lambda name: f"no {name}")
    monkeypatch.setitem(BUILT_IN, "flashinfer", replace(BUILT_IN["flashinfer"], environment="flashinfer"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environments, "CLONE", tmp_path)
    assert absent("flashinfer") == "no flashinfer"
    python = tmp_path / ".venvs" / "flashinfer" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert absent("flashinfer") is None


def test_three_sanitizers_run_the_smoke_tier_of_our_kernels(a_sanitizer):
    a_sanitizer("")
    found = [step for step in steps(["triton"], FOLDER, None) if "--tool" in step.command]
    assert [step.command[step.command.index("--tool") + 1] for step in found] == ["memcheck", "racecheck", "initcheck"]
    for step in found:
        assert step.missing is None
        assert {"kvproof_suites.kernel", "--kvproof-impl=triton", "--kvproof-tier=smoke"} <= set(step.command)
        assert step.env["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"


def test_the_sweep_times_all_that_were_judged_in_one_process():
    step = sweep(["triton", "flashinfer"], FOLDER)
    assert step.missing is None
    assert {"kvproof_suites.bench", "--kvproof-impl=triton,flashinfer", "--kvproof-device=cuda"} <= set(step.command)
    assert f"--kvproof-profile={SHAPES}" in step.command
    assert f"--kvproof-verified-by={FOLDER / LAWS}" in step.command


def test_every_option_of_the_sweep_is_one_of_ours():
    given = [text.partition("=")[0].removeprefix("--kvproof-") for text in sweep(["triton"], FOLDER).command]
    assert {"bench", "impl", "profile", "device", "verified-by", "results"} == set(given) & set(OPTIONS)


def test_the_sweep_is_not_run_where_nobody_was_judged():
    assert sweep([], FOLDER).missing == "no implementation was judged here"


@pytest.fixture
def swept():
    return kernel_cells(read_profile(str(SHAPES)), "cuda")


def test_the_sweep_spans_batches_contexts_block_sizes_and_tables(swept):
    assert {cell.group for cell in swept} == {"decode"}
    assert {len(cell.point.seqs) for cell in swept} == {1, 4, 16, 64, 128, 256}
    assert {max(cell.point.context_lens) // 1024 for cell in swept} == {1, 4, 16, 64}
    assert {cell.block_size for cell in swept} == {16, 32, 64, 128, 256}
    assert {cell.table for cell in swept} == {"identity", "shuffled", "churned"}
    assert {(cell.cache, cell.mode) for cell in swept} == {("cold", "graph"), ("cold", "eager")}


def test_the_sweep_holds_every_point_that_the_notes_follow(swept):
    rows = [{**cell.fields(), "timed": True} for cell in swept]
    followed = [notes.key(row) for row in rows if notes.is_followed(row)]
    assert set(notes.POINTS) <= set(followed)
    assert len(set(followed)) == len(followed)
    assert {cell.heads for cell in swept} == {Heads(*notes.HEADS[:3], dtype="bfloat16")}


def test_a_sanitizer_that_is_absent_is_not_run_and_says_where_it_was_looked_for(no_sanitizer):
    found = [step for step in steps(["triton"], FOLDER, None) if "--tool" in step.command]
    outcomes = [run(step) for step in found]
    assert {outcome.status for outcome in outcomes} == {NOT_RUN}
    assert "neither on the PATH nor in" in outcomes[0].detail


def test_the_list_can_be_read_without_a_device(no_sanitizer):
    told = CliRunner().invoke(gpu.main, ["--dry-run", "--impl=triton flash-attn"])
    assert told.exit_code == 0
    lines = told.output.splitlines()
    assert len(lines) == 2 + 3 + 1
    assert ["--impl=flash-attn" in line for line in lines].index(True) == 1
    assert lines[2].startswith("# memcheck: triton: not run: compute-sanitizer is neither on the PATH")
    assert "kvproof_suites.bench" in lines[5]


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (0, PASSED, ""),
        (1, FAILED, "a law is broken"),
        (4, FAILED, "usage error"),
        (5, FAILED, "nothing was verified"),
        (77, FAILED, "exit code 77"),
    ],
)
def test_the_exit_code_of_the_laws_is_told_in_words(code, status, told):
    outcome = run(Step("laws", python(f"import sys; sys.exit({code})")))
    assert outcome.status == status
    assert told in outcome.detail


def test_a_step_that_crashes_or_is_not_there_has_failed():
    crashed = run(Step("laws", python("import os; os.abort()")))
    assert (crashed.status, crashed.detail) == (FAILED, "killed by signal 6")
    absent = run(Step("laws", ("no-such-program",)))
    assert (absent.status, absent.detail) == (FAILED, "no-such-program: No such file or directory")


def test_a_step_past_its_limit_is_ended_with_all_it_has_started(tmp_path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome = run(Step("slow", python(parent)), limit_seconds=3)
    assert (outcome.status, outcome.detail) == (FAILED, "ended after 3 s")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not is_running(pid):
            break
        time.sleep(0.1)
    assert not is_running(pid)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACY = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"


@pytest.mark.parametrize(
    ("log", "code", "status", "told"),
    [
        (CLEAN, 0, PASSED, "ERROR SUMMARY: 0 errors"),
        (RACY.replace("1 hazard ", "0 hazards "), 0, PASSED, "RACECHECK SUMMARY: 0 hazards"),
        (CLEAN, 1, FAILED, "exit code 1, though: ERROR SUMMARY: 0 errors"),
        (CLEAN.replace("0 errors", "2 errors"), 86, FAILED, "ERROR SUMMARY: 2 errors"),
        (CLEAN + CLEAN.replace("0 errors", "1 error"), 0, FAILED, "1 error"),
        (RACY, 0, FAILED, "1 hazard displayed"),
        ("========= COMPUTE-SANITIZER\n", 0, FAILED, "no summary in memcheck.log"),
    ],
)
def test_a_sanitizer_passes_where_its_log_and_the_laws_both_say_so(a_sanitizer, tmp_path, log, code, status, told):
    a_sanitizer(log, code)
    step = steps(["triton"], tmp_path, None)[1]
    outcome = run(step)
    assert outcome.status == status
    assert told in outcome.detail


def test_the_published_excerpt_holds_findings_and_summary_but_no_folder(tmp_path):
    log = tmp_path / "memcheck.log"
    frames = "=========     Host Frame: launch in /home/somebody/kernel.py:3\n"
    log.write_text("========= Invalid __global__ read of size 2 bytes\n" + frames * 3 + CLEAN)
    text = sanitizer.excerpt(log)
    assert "Invalid __global__ read" in text
    assert "ERROR SUMMARY" in text
    assert "somebody" not in text
