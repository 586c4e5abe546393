"""What a GPU run leaves behind to be committed, and the exit code that says whether all of it was verified."""

import json
import re
from datetime import date
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kvproof_reports.records import RunWriter, read_run
from kvproof_suites.gpu import __main__ as gpu
from kvproof_suites.gpu import notes, publish
from kvproof_suites.gpu.steps import LAWS
from kvproof_suites.published_folder import PUBLISHED, claim, name_of
from kvproof_suites.step import FAILED, NOT_RUN, PASSED, Outcome

DAY = date(2026, 11, 30)
ROOT = Path(__file__).parents[3]
FIGURES = {"median_ms": 0.25, "q1_ms": 0.24, "q3_ms": 0.27, "num_samples": 20, "share_of_roof": 0.912}


def decode_row(batch, context_len, block_size, table="shuffled"):
    heads = dict(zip(("num_q_heads", "num_kv_heads", "head_dim"), (32, 8, 128), strict=True))
    row = {"group": "decode", "implementation": "triton", "block_size": block_size, "table": table, **heads}
    row |= {"batch": batch, "context_len": context_len, "dtype": "bfloat16", "device": "cuda"}
    return {**row, "timed": True, "verified": True, **FIGURES, "roof_gb_per_second": 4300.0}


def write_run(folder, name="triton"):
    """Records as the steps of a run leave them; a law's reason names a folder of this machine."""
    writer = RunWriter(folder / name)
    about = {"name": name, "version": None, "provides": "kernel", "summary": None}
    session = {"tier": "full", "seed": 0, "device": "cuda", "command": ["pytest"], "environment": {}}
    writer.write("session", implementations=[about], **session)
    law = {"law": "G1", "sentence": "It attends.", "test": "test_budget.py::a", "implementation": name, "seconds": 1.0}
    writer.write("law", **law, outcome="not_run", reason=f"see {Path.cwd()}/results and {Path.home()}/cache")
    writer.write("law", **{**law, "test": "test_budget.py::b"}, outcome="verified", error_to_bound=0.5)
    writer.write("benchmark", **decode_row(64, 4096, 16))


@pytest.mark.parametrize(
    ("gpu_name", "folder"),
    [("NVIDIA H200", "nvidia-h200-2026-11-30"), ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb-2026-11-30")],
)
def test_the_folder_is_called_after_device_and_day(gpu_name, folder):
    assert name_of(gpu_name, DAY) == folder


def test_a_second_run_of_a_day_overwrites_nothing(tmp_path):
    assert [claim(tmp_path, "h200").name for _ in range(3)] == ["h200", "h200-2", "h200-3"]


@pytest.fixture
def run_of_two(tmp_path, monkeypatch):
    """One implementation that was judged, one that was not available, one sanitizer."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write_run(tmp_path / "run")
    (tmp_path / "run" / "memcheck.log").write_text("========= ERROR SUMMARY: 0 errors\n")
    return tmp_path / "run"


def test_a_run_becomes_a_folder_to_commit(run_of_two, tmp_path):
    target = claim(tmp_path / "published", "h200")
    outcomes = [
        Outcome("laws and benchmark: triton", PASSED, "", 600.0),
        Outcome("laws and benchmark: flash-attn", FAILED, "usage error", 1.0),
        Outcome("racecheck: triton", NOT_RUN, "absent", 0.0),
    ]
    publish.publish(run_of_two, target, outcomes, ["triton", "flash-attn"])
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert {"triton/results.jsonl", "report.md", "environment.json", "memcheck.txt", "README.md"} <= files
    assert len(read_run(target / "triton").latest("law")) == 2
    page = (target / "README.md").read_text()
    assert "| laws and benchmark: flash-attn | failed | 0.0 | usage error |" in page
    assert "| racecheck: triton | not run | 0.0 | absent |" in page
    assert json.loads((target / "environment.json").read_text())["torch"] == torch.__version__


def test_the_sweep_learns_the_laws_of_every_implementation(tmp_path):
    for name in ("triton", "flashinfer"):
        write_run(tmp_path, name)
    publish.gather_laws(tmp_path, ["triton", "flashinfer"])
    laws = read_run(tmp_path / LAWS).latest("law")
    found = [(law["implementation"], law["outcome"]) for law in laws]
    assert found == [(name, outcome) for name in ("triton", "flashinfer") for outcome in ("not_run", "verified")]


def test_no_folder_of_this_machine_is_published(run_of_two, tmp_path):
    target = claim(tmp_path / "published", "h200")
    publish.publish(run_of_two, target, [], ["triton"])
    text = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file()).decode()
    assert "see ./results and ~/cache" in text
    assert str(tmp_path) not in text


HEAD = f"# Notes\n\n| {' | '.join(notes.COLUMNS)} |\n|{' --- |' * len(notes.COLUMNS)}\n"


def test_a_measured_point_has_its_figures_and_the_others_are_not_run():
    records = [decode_row(64, 4096, 16), decode_row(64, 4096, 64, table="identity")]
    lines = notes.rows("NVIDIA H200", DAY, "abc1234", records)
    assert len(lines) == len(notes.POINTS)
    (measured,) = (line for line in lines if "0.2500" in line)
    assert measured.startswith("| 2026-11-30 | H200 | abc1234 | 64 | 4,096 | 16 | 1,074.9 MB | 0.2250 ms | 0.2500 [")
    assert measured.endswith("| 91.2 % |")
    assert sum(line.endswith("| not run | not run |") for line in lines) == len(lines) - 1


@pytest.mark.parametrize(
    "other",
    [{"mode": "eager"}, {"cache": "hot"}, {"table": "identity"}, {"group": "prefill"}, {"timed": False}],
    ids=str,
)
def test_another_kind_of_measurement_is_not_taken_for_the_point(other):
    assert notes.is_followed({**decode_row(64, 4096, 16), "mode": "graph", "cache": "cold"})
    assert not notes.is_followed({**decode_row(64, 4096, 16), **other})


def test_a_prediction_is_bytes_over_bandwidth():
    """By hand: 64 contexts of 4,096 tokens, 8 heads of 128, K and V, two bytes each; and what little is beside them."""
    predicted = notes.predict(64, 4096, 16)
    keys_and_values = 64 * 4096 * 2 * 8 * 128 * 2
    rows = 2 * 64 * 32 * 128 * 2
    assert predicted.must_bytes == keys_and_values + rows + 4 * 64 * 256
    assert predicted.must_bytes < predicted.asked_bytes < 1.01 * predicted.must_bytes
    assert predicted.at_least_ms(4.8e12) == pytest.approx(1e3 * predicted.asked_bytes / 4.8e12)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA L4", None),
    ],
)
def test_a_device_finds_its_own_data_sheet_or_none(name, sheet):
    found = notes.gpu_named(name)
    assert (found and found.name) == sheet


def test_without_a_data_sheet_the_measured_roof_stands_in():
    (measured, *_) = (
        line for line in notes.rows("NVIDIA L4", DAY, "v", [decode_row(64, 4096, 16)]) if "0.2500" in line
    )
    assert f"| {1e3 * notes.predict(64, 4096, 16).asked_bytes / 4300e9:.4f} ms |" in measured


def test_lines_are_appended_to_the_table(tmp_path):
    path = tmp_path / "NOTES.md"
    path.write_text(HEAD)
    notes.append(path, ["| a |"])
    notes.append(path, ["| b |"])
    assert path.read_text() == HEAD + "| a |\n| b |\n"
    path.write_text(HEAD + "\nmore text\n")
    with pytest.raises(ValueError, match="must be the last thing"):
        notes.append(path, ["| c |"])


def test_the_committed_notes_follow_every_point_and_tell_no_share_without_a_time():
    table = [line for line in (ROOT / notes.NOTES).read_text().splitlines() if line.startswith("|")]
    assert table[0] == notes.row(notes.COLUMNS)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert {tuple(int(cell.replace(",", "")) for cell in line[3:6]) for line in lines} >= set(notes.POINTS)
    for line in lines:
        assert len(line) == len(notes.COLUMNS)
        assert (line[-1] == notes.NOT_RUN) == (line[-2] == notes.NOT_RUN)


@pytest.fixture
def a_device(monkeypatch, tmp_path):
    """An H200 on paper, and steps that leave records or fail, by what they are called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / notes.NOTES).write_text(HEAD)
    monkeypatch.setattr(gpu, "device", lambda: "NVIDIA H200")

    def act(verdicts):
        begun = []

        def run(step, limit):
            begun.append(step)
            status = next((verdict for word, verdict in verdicts.items() if word in step.name), PASSED)
            if "check" not in step.name and status != FAILED:
                folder = next(text.partition("=")[2] for text in step.command if "-results=" in text)
                write_run(Path(folder).parent, Path(folder).name)
            return Outcome(step.name, status, "", 1.0)

        monkeypatch.setattr(gpu, "run", run)
        return begun

    return act


def test_one_that_fails_does_not_hide_the_others_and_the_exit_code_says_so(a_device, tmp_path):
    begun = a_device({"flash-attn": FAILED, "check": NOT_RUN})
    told = CliRunner().invoke(gpu.main, ["--impl=flash-attn triton"], catch_exceptions=False)
    assert told.exit_code == 1
    assert "make gpu: not verified: laws and benchmark: flash-attn" in told.output
    assert "--kvproof-impl=triton" in begun[-1].command
    (folder,) = (tmp_path / PUBLISHED).iterdir()
    assert re.fullmatch(r"nvidia-h200-\d{4}-\d\d-\d\d", folder.name)
    assert (folder / "triton" / "results.jsonl").is_file()
    assert not (folder / "flash-attn").exists()
    assert "0.2500" in (tmp_path / notes.NOTES).read_text()


def test_a_run_in_which_all_passed_exits_with_0(a_device):
    a_device({"check": NOT_RUN})
    told = CliRunner().invoke(gpu.main, ["--impl=triton"], catch_exceptions=False)
    assert told.exit_code == 0
    assert "memcheck: triton\tnot run" in told.output


def test_a_run_can_be_done_in_parts(a_device, tmp_path):
    begun = a_device({})
    for only in ("laws", "sweep", "memcheck"):
        options = ["--impl=triton", f"--only={only}", "--results=results/gpu"]
        told = CliRunner().invoke(gpu.main, options, catch_exceptions=False)
        assert told.exit_code == 0, told.output
    assert [step.name for step in begun] == ["laws and benchmark: triton", "decode sweep", "memcheck: triton"]
    assert "--kvproof-impl=triton" in begun[1].command
    first, second, _ = sorted((tmp_path / PUBLISHED).iterdir())
    assert "| decode sweep | not run | 0.0 | left out by --only=laws |" in (first / "README.md").read_text()
    assert (second / "sweep" / "results.jsonl").is_file()
    assert (tmp_path / notes.NOTES).read_text().count("0.2500") == 1


def test_a_run_of_no_step_verifies_nothing(a_device):
    a_device({})
    told = CliRunner().invoke(gpu.main, ["--only=no step is called like this"], catch_exceptions=False)
    assert told.exit_code == 1
    assert "nothing was verified" in told.output


def test_without_a_sweep_the_notes_stay_as_they_are(a_device, tmp_path):
    a_device({"sweep": FAILED})
    CliRunner().invoke(gpu.main, ["--impl=triton flashinfer"], catch_exceptions=False)
    assert (tmp_path / notes.NOTES).read_text() == HEAD


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_nothing_is_verified_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(gpu.main, [])
    assert told.exit_code == 1
    assert "torch finds no CUDA device on this machine, so nothing was verified" in told.output
    assert list(tmp_path.iterdir()) == []


def test_the_makefile_passes_its_variables_on():
    text = (ROOT / "Makefile").read_text()
    assert "-m kvproof_suites.gpu $(if $(GPU_IMPLS),--impl='$(GPU_IMPLS)')" in text
    assert "-m kvproof_kernels.tune" in text
